//! Parses and prints sizes in bytes.

use std::fmt;

/// Suffixes by powers of 1024; the first is the plain number.
const SUFFIXES: [&str; 6] = ["", "K", "M", "G", "T", "P"];

/// Reads `10G`, `512M`, `4096`; also `10GiB` and lower case.
///
/// # Errors
/// A line for the user.
pub(crate) fn parse_size(typed: &str) -> Result<u64, String> {
    let bad = || format!("{typed:?} is no size: use a number with K, M, G or T");
    let digits = typed.find(|c: char| !c.is_ascii_digit()).unwrap_or(typed.len());
    let (number, suffix) = typed.split_at(digits);
    let suffix = suffix.to_ascii_uppercase();
    let suffix = suffix.strip_suffix("IB").or(suffix.strip_suffix('B')).unwrap_or(&suffix);
    let power = SUFFIXES.iter().position(|known| *known == suffix).ok_or_else(bad)?;
    let number: u64 = number.parse().map_err(|_| bad())?;
    number.checked_mul(1 << (10 * power)).ok_or_else(bad)
}

/// A size per second, as `25MB/s`.
///
/// # Errors
/// A line for the user.
pub(crate) fn parse_rate(typed: &str) -> Result<u64, String> {
    match parse_size(typed.strip_suffix("/s").unwrap_or(typed))? {
        0 => Err("nothing would ever pass".to_owned()),
        rate => Ok(rate),
    }
}

/// Least limit of [`parse_limit`], in bytes per second.
const LIMIT_MIN: u64 = 1 << 10;

/// A limit on bytes per second, as `500k`, `2M/s`; `off` and 0 are none. Programs with an option of
/// this name take a plain number in KiB: one that is so small is refused.
///
/// # Errors
/// A line for the user.
pub(crate) fn parse_limit(typed: &str) -> Result<Option<u64>, String> {
    if typed == "off" {
        return Ok(None);
    }
    match parse_size(typed.strip_suffix("/s").unwrap_or(typed))? {
        0 => Ok(None),
        rate if rate < LIMIT_MIN => {
            Err(format!("{rate} bytes per second are too few: did you mean {rate}K?"))
        }
        rate => Ok(Some(rate)),
    }
}

/// A number of bytes, shown with about three digits: `1.5 GiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bytes(pub(crate) u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < 1024 {
            return f.pad(&format!("{} B", self.0));
        }
        let power = (self.0.ilog2() / 10) as usize;
        // Three digits are shown; f64 is exact enough for them.
        let value = self.0 as f64 / (1_u64 << (10 * power)) as f64;
        let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
        f.pad(&format!("{value:.digits$} {}iB", ["", "K", "M", "G", "T", "P", "E"][power]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        for (typed, bytes) in [
            ("0", Ok(0)),
            ("4096", Ok(4096)),
            ("1k", Ok(1024)),
            ("10G", Ok(10 << 30)),
            ("10GiB", Ok(10 << 30)),
            ("2TB", Ok(2 << 40)),
            ("", Err(())),
            ("G", Err(())),
            ("1.5G", Err(())),
            ("-1", Err(())),
            ("10X", Err(())),
            ("99999999999999P", Err(())),
        ] {
            assert_eq!(parse_size(typed).map_err(|_| ()), bytes, "{typed:?}");
        }
    }

    #[test]
    fn limits_are_read() {
        for (typed, limit) in [
            ("2M", Ok(Some(2 << 20))),
            ("500k", Ok(Some(500 << 10))),
            ("1KiB/s", Ok(Some(1024))),
            ("4096", Ok(Some(4096))),
            ("off", Ok(None)),
            ("0", Ok(None)),
            ("1.5M", Err("no size")),
            ("500", Err("did you mean 500K?")),
            ("fast", Err("no size")),
        ] {
            match (parse_limit(typed), limit) {
                (Ok(read), limit) => assert_eq!(Ok(read), limit, "{typed}"),
                (Err(line), Err(part)) => assert!(line.contains(part), "{typed}: {line}"),
                (read, _) => panic!("{typed}: {read:?}"),
            }
        }
    }

    #[test]
    fn a_limit_on_what_is_sent_in_the_background() {
        let limit = |typed| crate::options::parse([typed]).map(|options| options.rate_max);
        assert_eq!(limit("ro"), Ok(None));
        assert_eq!(limit("bwlimit=500k"), Ok(Some(500 << 10)));
        assert_eq!(limit("bwlimit=2M,bwlimit=off"), Ok(None));
        assert_eq!(limit("bwlimit=off,bwlimit=2M"), Ok(Some(2 << 20)));
        assert!(limit("bwlimit").unwrap_err().contains("bwlimit=1M"));
        assert!(limit("bwlimit=5").unwrap_err().contains("5K"));
    }

    #[test]
    fn sizes_are_shown() {
        for (bytes, shown) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (200 << 20, "200 MiB"),
            ((3 << 30) / 2, "1.50 GiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), shown);
        }
    }
}
