"""Schedules in words (C7)."""

from __future__ import annotations

import pytest

from coterie.cron.schedule import Schedule


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("* * * * *", "every minute"),
        ("*/5 * * * *", "every 5 minutes"),
        ("0 * * * *", "every hour"),
        ("0 */2 * * *", "every 2 hours"),
        ("* * * * * *", "every second"),
        ("*/10 * * * * *", "every 10 seconds"),
        ("*/10 * 9 * * *", "every 10 seconds from 09:00 to 09:59, UTC"),
        ("5 * * * * *", "at second 5 of every minute"),
        ("5 1-3 * * * *", "at second 5 of minutes 1 to 3 of every hour"),
        ("*/20 0,30 * * * *", "every 20 seconds of minutes 0 and 30 of every hour"),
        ("30 * * * *", "at minute 30 of every hour"),
        ("30 */2 * * *", "at minute 30 of every 2 hours"),
        ("*/7 * * * *", "at minutes 0, 7, 14, 21, 28, 35, 42, 49 and 56 of every hour"),
        ("0 */5 * * *", "at minute 0 of hours 0, 5, 10, 15 and 20, UTC"),
        ("1-5 * * * *", "at minutes 1 to 5 of every hour"),
        ("* 3 * * *", "every minute from 03:00 to 03:59, UTC"),
        ("*/15 9-17 * * MON-FRI", "every 15 minutes from 09:00 to 17:59, Monday to Friday, UTC"),
        ("*/15 9,12,15 * * *", "every 15 minutes in hours 9, 12 and 15, UTC"),
        ("0 9-17 * * *", "every hour from 09:00 to 17:00, UTC"),
        ("30 9-17 * * *", "at minute 30 of every hour from 09:00 to 17:59, UTC"),
        ("0 3 * * *", "every day at 03:00, UTC"),
        ("0 1/4 * * *", "every day at 01:00, 05:00, 09:00, 13:00, 17:00 and 21:00, UTC"),
        ("5 4 3 * * *", "every day at 03:04:05, UTC"),
        ("0 3,15 * * SAT,SUN", "every Saturday and Sunday at 03:00 and 15:00, UTC"),
        ("0 3 * * FRI-SUN", "Friday to Sunday at 03:00, UTC"),
        ("0 3 * JAN-MAR,DEC *", "every day in January to March and December at 03:00, UTC"),
        ("0 3 * JUL MON", "every Monday in July at 03:00, UTC"),
        ("0 3 1,15,L * *", "on the 1st, the 15th and the last day of every month at 03:00, UTC"),
        ("0 3 LW * *", "on the last workday of every month at 03:00, UTC"),
        ("0 3 1-7 * *", "on the 1st to 7th of every month at 03:00, UTC"),
        ("0 3 11,12,21,22,23 * *", "on the 11th, the 12th and the 21st to 23rd of every month at 03:00, UTC"),
        ("0 3 */2 * *", "on every 2nd day from the 1st of every month at 03:00, UTC"),
        ("0 0 29 2 *", "on the 29th of February at 00:00, UTC"),
        ("0 9 * * MON#2", "on the 2nd Monday of every month at 09:00, UTC"),
        ("0 9 * * WED,5L", "on every Wednesday and the last Friday of every month at 09:00, UTC"),
        ("30 2 1 * MON", "on the 1st and every Monday of every month at 02:30, UTC"),
        ("30 2 1 * MON#1", "on the 1st and the 1st Monday of every month at 02:30, UTC"),
        (
            "0 3 */2 7 MON,FRIL",
            "on every 2nd day from the 1st of July if it is a Monday or the last Friday at 03:00, UTC",
        ),
        ("@every 1s", "every second"),
        ("@every 90s", "every 90 seconds"),
        ("@every 90m", "every 90 minutes"),
        ("@every 1h", "every hour"),
        ("@every 1d", "every day"),
        ("@every 25h", "every 25 hours"),
        ("@every 7d", "every 7 days"),
    ],
)
def test_a_schedule_in_words(expression: str, words: str) -> None:
    assert Schedule(expression).explain() == words


def test_a_zone_other_than_utc_is_always_said() -> None:
    assert Schedule("0 3 * * *", timezone="Europe/Zurich").explain() == "every day at 03:00, Europe/Zurich"
    assert Schedule("0 * * * *", timezone="Asia/Kolkata").explain() == "every hour, Asia/Kolkata"
    assert Schedule("@every 1h", timezone="Asia/Kolkata").explain() == "every hour"
