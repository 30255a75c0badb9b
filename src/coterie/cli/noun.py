"""Nouns: commands with verbs. Without a verb, a noun runs its default verb, which changes nothing."""

from __future__ import annotations

from typing import Any

import click


class Noun(click.Group):
    """A noun with its verbs.

    Args:
        alone: The default verb.
    """

    def __init__(self, *args: Any, alone: str = "list", **options: Any) -> None:
        super().__init__(*args, **options)
        self._alone = alone

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """`coterie cron --json` is `coterie cron list --json`."""
        if ctx.resilient_parsing:  # shell completion: complete the verbs
            return super().parse_args(ctx, args)
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = [self._alone, *args]
        return super().parse_args(ctx, args)
