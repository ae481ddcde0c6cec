//! Statistics of samples: median, spread, 95 % interval.
//!
//! Times are compared as ratios, so intervals are taken of logarithms: a Student t interval of the
//! mean log, which for two targets measured round by round is taken of the paired differences. The
//! value that is shown is the median; the interval is of the geometric mean. With fewer than three
//! samples there is no interval, and nothing is concluded.

use serde::{Deserialize, Serialize};

/// A value and its spread, in the unit of the samples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// How many samples there were, at least one.
    pub count: usize,
    /// Half of them are at most this.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
    /// The interval that contains the geometric mean with 95 % confidence; `None` for fewer than
    /// three samples.
    pub interval: Option<(f64, f64)>,
}

/// With two samples the interval is 12.7 standard errors wide on either side: it means nothing,
/// although it looks as if it did.
pub const SAMPLES_MIN: usize = 3;

impl Summary {
    /// From samples above zero; `None` if there are none.
    ///
    /// # Panics
    /// If a sample is not a number above zero.
    pub fn of(samples: &[f64]) -> Option<Summary> {
        assert!(samples.iter().all(|sample| *sample > 0.0 && sample.is_finite()), "{samples:?}");
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        Some(Summary {
            count: sorted.len(),
            median: median(&sorted),
            min,
            max,
            interval: interval(samples),
        })
    }

    /// Half the width of the interval as a share of its middle (of logarithms): 0.05 is plus or
    /// minus 5 %. Infinite if there is no interval.
    pub fn relative_width(&self) -> f64 {
        self.interval.map_or(f64::INFINITY, |(low, high)| ((high / low).ln() / 2.0).exp_m1())
    }
}

/// How many times as large `ours` is as `theirs`, by rounds: samples at the same place belong
/// together. Below one with times means faster.
pub fn paired_ratio(ours: &[f64], theirs: &[f64]) -> Option<Summary> {
    let ratios: Vec<f64> = ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect();
    Summary::of(&ratios)
}

fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 {
        sorted[middle]
    } else {
        (sorted[middle - 1] * sorted[middle]).sqrt()
    }
}

fn interval(samples: &[f64]) -> Option<(f64, f64)> {
    if samples.len() < SAMPLES_MIN {
        return None;
    }
    let count = samples.len() as f64;
    let logs: Vec<f64> = samples.iter().map(|sample| sample.ln()).collect();
    let mean = logs.iter().sum::<f64>() / count;
    let variance = logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>() / (count - 1.0);
    let half = student_t(samples.len() - 1) * (variance / count).sqrt();
    Some(((mean - half).exp(), (mean + half).exp()))
}

/// The two-sided 95 % point of Student's distribution.
fn student_t(degrees: usize) -> f64 {
    const TABLE: [f64; 30] = [
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
        2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
        2.052, 2.048, 2.045, 2.042,
    ];
    TABLE.get(degrees.saturating_sub(1)).copied().unwrap_or(1.96)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_samples_have_a_narrow_interval() {
        let summary = Summary::of(&[2.0, 2.0, 2.0]).unwrap();
        assert_eq!((summary.median, summary.min, summary.max), (2.0, 2.0, 2.0));
        assert!(summary.relative_width() < 1e-9);
    }

    #[test]
    fn interval_agrees_with_a_worked_example() {
        // Logs 1, 2, 3: mean 2, deviation 1, half width 4.303 / sqrt(3).
        let samples: Vec<f64> = [1.0_f64, 2.0, 3.0].iter().map(|log| log.exp()).collect();
        let (low, high) = Summary::of(&samples).unwrap().interval.unwrap();
        assert!((low.ln() - (2.0 - 2.4843)).abs() < 1e-3, "{low}");
        assert!((high.ln() - (2.0 + 2.4843)).abs() < 1e-3, "{high}");
    }

    #[test]
    fn ratios_are_of_rounds() {
        // Both doubled from round to round; the ratio is the same in each.
        let ratio = paired_ratio(&[1.0, 2.0, 4.0], &[2.0, 4.0, 8.0]).unwrap();
        assert_eq!(ratio.median, 0.5);
        assert!(ratio.relative_width() < 1e-9);
    }

    #[test]
    fn nothing_is_concluded_from_two_samples() {
        assert_eq!(Summary::of(&[]), None);
        assert_eq!(Summary::of(&[1.0, 1.0]).unwrap().interval, None);
        assert!(Summary::of(&[1.0, 1.0, 1.0]).unwrap().interval.is_some());
        assert_eq!(Summary::of(&[1.0]).unwrap().interval, None);
    }
}
