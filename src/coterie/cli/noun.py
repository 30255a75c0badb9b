"""Nouns: commands with verbs. Alone, or with options only, a noun does the harmless thing."""

from __future__ import annotations

from typing import Any

import click


class Noun(click.Group):
    """A noun with its verbs.

    Args:
        alone: The verb that is meant when none is given.
    """

    def __init__(self, *args: Any, alone: str = "list", **options: Any) -> None:
        super().__init__(*args, **options)
        self._alone = alone

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """`coterie cron --json` is `coterie cron list --json`."""
        if ctx.resilient_parsing:  # a shell completes: it asks for the verbs
            return super().parse_args(ctx, args)
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = [self._alone, *args]
        return super().parse_args(ctx, args)
