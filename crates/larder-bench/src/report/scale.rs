//! Scales of axes: from values to pixels, linear or logarithmic, with ticks at numbers that read
//! well.
//!
//! Invariants, checked below: a scale never turns back, every value given to it lies inside, and so
//! do its ticks, which grow. Values are sanitized before they come here: finite, above zero where
//! the scale is logarithmic.

/// Where values lie in pixels.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Scale {
    log: bool,
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

/// From this ratio of greatest to least on, small values would vanish beside large ones on a linear
/// axis: they would be less than a twelfth of its length.
const LOG_FROM: f64 = 12.0;

/// Whether values above zero need a logarithmic axis.
pub(crate) fn needs_log(values: impl IntoIterator<Item = f64>) -> bool {
    let (low, high) = ends(values);
    high / low >= LOG_FROM
}

/// Least and greatest; one and one if there are none.
pub(crate) fn ends(values: impl IntoIterator<Item = f64>) -> (f64, f64) {
    let ends = values.into_iter().filter(|value| value.is_finite()).fold(
        None,
        |ends: Option<(f64, f64)>, value| {
            Some(ends.map_or((value, value), |(low, high)| (low.min(value), high.max(value))))
        },
    );
    ends.unwrap_or((1.0, 1.0))
}

impl Scale {
    /// From zero to at least `high`, on the pixels `from` to `to`.
    pub(crate) fn linear(high: f64, from: f64, to: f64) -> Scale {
        let high = if high > 0.0 { high } else { 1.0 };
        let step = nice_step(high, 5);
        Scale { log: false, low: 0.0, high: (high / step - 1e-9).ceil() * step, from, to }
    }

    /// From at most `low` to at least `high`, with a little room at both ends.
    pub(crate) fn between(low: f64, high: f64, from: f64, to: f64) -> Scale {
        // Room for ticks even where values differ by less than what a number can hold.
        let least = high.abs().max(low.abs()) * 1e-6;
        let room =
            if high > low { ((high - low) * 0.03).max(least) } else { high.abs().max(1.0) * 0.5 };
        Scale { log: false, low: low - room, high: high + room, from, to }
    }

    /// Logarithmic, from at most `low` to at least `high`, both above zero.
    pub(crate) fn log(low: f64, high: f64, from: f64, to: f64) -> Scale {
        let (low, high) = (low.max(1e-30), high.max(1e-30));
        let room = (high / low).powf(0.03).max(1.15);
        Scale { log: true, low: low / room, high: high * room, from, to }
    }

    /// WorkDir of a value, in pixels; of one outside, the nearer end.
    pub(crate) fn at(&self, value: f64) -> f64 {
        let share = if self.log {
            (value.max(1e-300) / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        self.from + share.clamp(0.0, 1.0) * (self.to - self.from)
    }

    /// Whether a value lies inside.
    pub(crate) fn holds(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }

    /// Whether it is logarithmic.
    pub(crate) fn is_log(&self) -> bool {
        self.log
    }

    /// The greatest value.
    pub(crate) fn high(&self) -> f64 {
        self.high
    }

    /// Numbers that read well, growing, all inside: two at least, and about as many as asked for,
    /// never more than twice.
    pub(crate) fn ticks(&self, wanted: usize) -> Vec<f64> {
        let wanted = wanted.max(2);
        if !self.log {
            return self.linear_ticks(wanted);
        }
        let sets: [&[f64]; 3] = [&[1.0, 2.0, 5.0], &[1.0, 3.0], &[1.0]];
        let mut all = Vec::new();
        for set in sets {
            all = self.powers(set);
            if all.len() <= wanted {
                break;
            }
        }
        let every = all.len().div_ceil(wanted).max(1);
        let ticks: Vec<f64> = all.into_iter().step_by(every).collect();
        // A short logarithmic scale holds hardly any of 1, 2 and 5.
        if ticks.len() >= 2 { ticks } else { self.linear_ticks(wanted) }
    }

    /// At equal distances.
    fn linear_ticks(&self, wanted: usize) -> Vec<f64> {
        let step = nice_step(self.high - self.low, wanted);
        let (first, last) = ((self.low / step - 1e-9).ceil(), (self.high / step + 1e-9).floor());
        if last <= first {
            return self.linear_ticks(wanted * 2);
        }
        (0..=(last - first) as usize).map(|index| (first + index as f64) * step).collect()
    }

    fn powers(&self, set: &[f64]) -> Vec<f64> {
        let (first, last) = (self.low.log10().floor() as i32, self.high.log10().ceil() as i32);
        (first..=last)
            .flat_map(|power| set.iter().map(move |digit| digit * 10_f64.powi(power)))
            .filter(|tick| self.holds(*tick))
            .collect()
    }
}

/// 1, 2 or 5 times a power of ten, about a `count`th of the range.
fn nice_step(range: f64, count: usize) -> f64 {
    let rough = range / count as f64;
    let power = 10_f64.powf(rough.log10().floor());
    let digit = [1.0, 2.0, 5.0, 10.0].into_iter().find(|digit| digit * power >= rough * 0.999);
    digit.unwrap_or(10.0) * power
}

/// Those of growing places that can be labelled without touching: `width` is of the label of each,
/// in pixels, centred on its place. The last is preferred to the one before it.
pub(crate) fn apart(places: &[f64], widths: &[f64]) -> Vec<usize> {
    let mut kept: Vec<usize> = Vec::new();
    let free = |left: usize, right: usize| {
        (places[right] - places[left]).abs() >= (widths[left] + widths[right]) / 2.0 + 6.0
    };
    for index in 0..places.len() {
        if index + 1 == places.len() {
            while kept.len() > 1 && !free(kept[kept.len() - 1], index) {
                kept.pop();
            }
        }
        if kept.last().is_none_or(|last| free(*last, index)) {
            kept.push(index);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(scale: &Scale, values: &[f64], wanted: usize) {
        let ticks = scale.ticks(wanted);
        assert!(ticks.len() >= 2, "{scale:?}: {ticks:?}");
        assert!(ticks.len() <= 2 * wanted.max(2) + 1, "{scale:?}: {ticks:?}");
        assert!(ticks.is_sorted_by(|a, b| a < b), "{scale:?}: {ticks:?}");
        let places: Vec<f64> = ticks.iter().map(|tick| scale.at(*tick)).collect();
        assert!(places.is_sorted_by(|a, b| a < b), "{scale:?}: {places:?}");
        let slack = scale.high * 1e-9;
        assert!(ticks.iter().all(|t| *t >= scale.low - slack && *t <= scale.high + slack));
        for value in values {
            assert!(scale.holds(*value), "{scale:?}: {value}");
            assert!((scale.from..=scale.to).contains(&scale.at(*value)));
        }
    }

    proptest! {
        #[test]
        fn axes_are_monotone_and_hold_values_and_ticks(
            exponent in -12.0_f64..18.0,
            spread in 0.0_f64..9.0,
            wanted in 0_usize..12,
        ) {
            let low = 10_f64.powf(exponent);
            let high = low * 10_f64.powf(spread);
            check(&Scale::log(low, high, 10.0, 500.0), &[low, high], wanted);
            check(&Scale::linear(high, 10.0, 500.0), &[0.0, high], wanted);
            check(&Scale::between(low, high, 10.0, 500.0), &[low, high], wanted);
            check(&Scale::between(high, high * (1.0 + 1e-15), 10.0, 500.0), &[high], wanted);
        }

        #[test]
        fn labels_stay_apart(widths in proptest::collection::vec(5.0_f64..80.0, 1..15)) {
            let places: Vec<f64> = (0..widths.len()).map(|index| index as f64 * 25.0).collect();
            let kept = apart(&places, &widths);
            prop_assert_eq!(kept.first(), Some(&0));
            for pair in kept.windows(2) {
                let room = places[pair[1]] - places[pair[0]];
                prop_assert!(room >= (widths[pair[0]] + widths[pair[1]]) / 2.0);
            }
        }
    }

    #[test]
    fn ticks_are_round() {
        assert_eq!(Scale::linear(26.0, 0.0, 1.0).ticks(5), [0.0, 10.0, 20.0, 30.0]);
        assert_eq!(Scale::log(0.01, 100.0, 0.0, 1.0).ticks(6), [0.01, 0.1, 1.0, 10.0, 100.0]);
        assert_eq!(Scale::linear(0.0, 0.0, 1.0).high(), 1.0);
    }

    #[test]
    fn wide_ranges_need_a_logarithm() {
        assert!(needs_log([1.0, 100.0]));
        assert!(!needs_log([1.0, 2.0]));
        assert!(!needs_log([]));
        assert_eq!(ends([f64::NAN]), (1.0, 1.0));
    }
}
