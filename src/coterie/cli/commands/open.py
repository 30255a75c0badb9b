"""`coterie open`: the page of a cluster in the browser."""

from __future__ import annotations

import http.client

import click

from coterie.cli.client import UNANSWERED, refuse, settings_for
from coterie.cli.output import as_json as to_json
from coterie.cli.output import echo
from coterie.settings.parsers import split_address

_ANSWERED_S = 3.0
_ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 the address to use for a wildcard


@click.command()
@click.option("--print", "only_print", is_flag=True, help="Print the address, and open nothing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, and open nothing.")
def command(only_print: bool, as_json: bool) -> None:
    """Open the page of the runner on this machine in the browser; its health, if web is off.

    It is expected at `http_listen`; exit code 3 if nothing answers there.

    \b
    Example:
      COTERIE_HTTP_LISTEN=127.0.0.1:7651 coterie open --print
    """
    settings = settings_for(None)
    if settings.http_listen is None:
        refuse("http_listen is off: nothing is served", hint="coterie status shows the same")
    host, port = split_address(settings.http_listen)
    host = _ANYWHERE.get(host, host)
    path = "health" if settings.web == "off" else ""
    url = f"http://[{host}]:{port}/{path}" if ":" in host else f"http://{host}:{port}/{path}"
    _require_answer(host, port, url)
    echo(to_json({"url": url}) if as_json else url)
    if not only_print and not as_json:
        click.launch(url)


def _require_answer(host: str, port: int, url: str) -> None:
    asked = http.client.HTTPConnection(host, port, timeout=_ANSWERED_S)
    try:
        asked.request("GET", "/live")
        asked.getresponse().read()
    except (OSError, http.client.HTTPException) as error:
        hint = "coterie run says where it serves; COTERIE_HTTP_LISTEN names another address"
        refuse(f"nothing answers at {url}: {error}", hint=hint, code=UNANSWERED)
    finally:
        asked.close()
