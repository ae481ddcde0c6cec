//! Numbers for people: three significant digits and a unit of sensible size.

/// Three significant digits; thousands are separated; very large and very small in powers of ten.
pub(crate) fn three(number: f64) -> String {
    if number == 0.0 {
        return "0".to_owned();
    }
    if !number.is_finite() {
        return "not a number".to_owned();
    }
    let unit = 10_f64.powi(magnitude(number) - 2);
    let rounded = (number / unit).round() * unit;
    // Rounding may have reached the next power of ten, which takes one decimal less.
    match magnitude(rounded * (1.0 + 1e-12)) {
        power @ -4..3 => {
            let decimals = usize::try_from(2 - power).unwrap_or(0);
            format!("{rounded:.decimals$}")
        }
        3..12 => grouped(rounded),
        // A minus sign after which no line breaks.
        _ => format!("{number:.2e}").replace("e-", "e\u{2212}"),
    }
}

/// Exponent of ten.
fn magnitude(number: f64) -> i32 {
    number.abs().log10().floor() as i32
}

/// A whole number with separated thousands: counts are shown exactly.
pub(crate) fn grouped(number: f64) -> String {
    let digits = format!("{:.0}", number.abs());
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    if number < 0.0 { format!("-{out}") } else { out }
}

/// A unit to write an amount in: what one of it is in the unit of the record, and its name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Shown<'a> {
    /// Size, in the unit of the record.
    pub(crate) size: f64,
    /// Name.
    pub(crate) name: &'a str,
}

const TIMES: [(f64, &str); 6] =
    [(1e-9, "ns"), (1e-6, "µs"), (1e-3, "ms"), (1.0, "s"), (60.0, "min"), (3600.0, "h")];
const RATES: [(f64, &str); 5] =
    [(1.0, "B/s"), (1e3, "kB/s"), (1e6, "MB/s"), (1e9, "GB/s"), (1e12, "TB/s")];
const SIZES: [(f64, &str); 5] = [(1.0, "B"), (1e3, "kB"), (1e6, "MB"), (1e9, "GB"), (1e12, "TB")];
const LINKS: [(f64, &str); 4] = [(1.0, "bit/s"), (1e3, "kbit/s"), (1e6, "Mbit/s"), (1e9, "Gbit/s")];

/// The unit in which an amount reads best.
pub(crate) fn shown(amount: f64, unit: &str) -> Shown<'_> {
    let (scale, table): (f64, &[(f64, &'static str)]) = match unit {
        "s" => (1.0, &TIMES),
        "ms" => (1e-3, &TIMES),
        "us" => (1e-6, &TIMES),
        "B/s" => (1.0, &RATES),
        "B" => (1.0, &SIZES),
        "bit/s" => (1.0, &LINKS),
        _ => return Shown { size: 1.0, name: unit },
    };
    let base = amount.abs() * scale;
    // 0.9995 rounds to one; ten minutes read better as minutes, ninety seconds as seconds.
    let fits =
        |size: f64| base >= size * if size > 1.0 && scale_is_time(unit) { 10.0 } else { 0.9995 };
    let chosen = table.iter().rev().find(|(size, _)| fits(*size)).unwrap_or(&table[0]);
    Shown { size: chosen.0 / scale, name: chosen.1 }
}

fn scale_is_time(unit: &str) -> bool {
    matches!(unit, "s" | "ms" | "us")
}

/// An amount with its unit, between which no line breaks: `91.5 ms`.
pub(crate) fn value(amount: f64, unit: &str) -> String {
    let shown = shown(amount, unit);
    format!("{}\u{a0}{}", three(amount / shown.size), shown.name).trim_end().to_owned()
}

/// An amount for an axis, without zeros that say nothing: `20`, `0.5`.
pub(crate) fn short(number: f64) -> String {
    let text = three(number);
    if !text.contains('.') || text.contains('e') {
        return text;
    }
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A number that was chosen, not measured: whole ones are not rounded, for 4096 is not 4,100.
pub(crate) fn exact(number: f64) -> String {
    if number.fract() == 0.0 && number.abs() < 1e15 { grouped(number) } else { short(number) }
}

/// Two ends in the same unit: `1.21 to 1.34 s`.
pub(crate) fn span((low, high): (f64, f64), unit: &str) -> String {
    let shown = shown(high, unit);
    let (low, high) = (three(low / shown.size), three(high / shown.size));
    format!("{low}\u{a0}to\u{a0}{high}\u{a0}{}", shown.name).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits() {
        for (number, text) in [
            (0.0, "0"),
            (0.0915, "0.0915"),
            (0.000_123_4, "0.000123"),
            (0.000_012_34, "1.23e\u{2212}5"),
            (1.0, "1.00"),
            (9.996, "10.0"),
            (99.96, "100"),
            (999.6, "1,000"),
            (1234.0, "1,230"),
            (-1.5, "-1.50"),
            (123_456_789.0, "123,000,000"),
            (1.2e17, "1.20e17"),
            (f64::NAN, "not a number"),
        ] {
            assert_eq!(three(number), text, "{number}");
        }
    }

    #[test]
    fn units_are_of_sensible_size() {
        for (amount, unit, text) in [
            (0.0915, "s", "91.5 ms"),
            (26.042, "s", "26.0 s"),
            (90.0, "s", "90.0 s"),
            (900.0, "s", "15.0 min"),
            (72_000.0, "s", "20.0 h"),
            (412.0, "us", "412 µs"),
            (1240.0, "us", "1.24 ms"),
            (26e6, "B/s", "26.0 MB/s"),
            (313.0, "files/s", "313 files/s"),
            (0.999_7, "s", "1.00 s"),
            (9.41e6, "bit/s", "9.41 Mbit/s"),
            (1e-15, "s", "1.00e\u{2212}6 ns"),
            (3.0, "", "3.00"),
        ] {
            assert_eq!(value(amount, unit).replace('\u{a0}', " "), text, "{amount} {unit}");
        }
    }

    #[test]
    fn axes_and_spans_are_short() {
        assert_eq!(
            (short(20.0), short(0.5), short(1500.0)),
            ("20".into(), "0.5".into(), "1,500".into())
        );
        assert_eq!(span((0.95, 1.2), "s"), "0.950\u{a0}to\u{a0}1.20\u{a0}s");
        assert_eq!(span((0.4, 0.45), ""), "0.400\u{a0}to\u{a0}0.450");
        assert_eq!(grouped(1_234_567.0), "1,234,567");
        assert_eq!((exact(4096.0), exact(0.25)), ("4,096".into(), "0.25".into()));
    }
}
