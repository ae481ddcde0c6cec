//! Parses durations.

use std::time::Duration;

/// Units that are read, with their length in microseconds.
const UNITS: [(&str, u64); 5] =
    [("us", 1), ("ms", 1000), ("s", 1_000_000), ("min", 60_000_000), ("h", 3_600_000_000)];

/// Reads `100us`, `1ms`, `10s`, `5min`, `2h`.
///
/// # Errors
/// A line for the user.
pub(crate) fn parse_span(typed: &str) -> Result<Duration, String> {
    let bad = || format!("{typed:?} is no time: use a number with us, ms, s, min or h");
    let digits = typed.find(|c: char| !c.is_ascii_digit()).unwrap_or(typed.len());
    let (number, unit) = typed.split_at(digits);
    let (_, unit_us) = UNITS.iter().find(|(known, _)| *known == unit).ok_or_else(bad)?;
    let number: u64 = number.parse().map_err(|_| bad())?;
    number.checked_mul(*unit_us).map(Duration::from_micros).ok_or_else(bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read() {
        let us = Duration::from_micros;
        for (typed, expected) in [
            ("0us", Some(us(0))),
            ("100us", Some(us(100))),
            ("1ms", Some(us(1000))),
            ("10s", Some(us(10_000_000))),
            ("5min", Some(us(300_000_000))),
            ("2h", Some(us(7_200_000_000))),
            ("", None),
            ("10", None),
            ("s", None),
            ("1.5s", None),
            ("-1s", None),
            ("1 s", None),
            ("1d", None),
            ("99999999999999999h", None),
        ] {
            assert_eq!(parse_span(typed).ok(), expected, "{typed:?}");
        }
    }
}
