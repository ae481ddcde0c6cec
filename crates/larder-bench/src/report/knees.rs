//! Where a curve falls for good.
//!
//! The curve is cut into levels: of all ways to cut it into pieces of constant height, the one
//! whose squared error (of logarithms) is least, when every cut costs something. A *knee* is a cut
//! where a level that was flat ends, and every later level is lower by more than a fifth. So a
//! curve that declines steadily has no knee, a dip that recovers is none, and noise is none. The
//! levels need two points each: where the very first point is higher than all others, nothing is
//! concluded.

/// A level lower than this share of the one before is a fall.
const FALLEN: f64 = 0.8;

/// A level is flat if its own trend is at most this share of the fall that follows. A steady
/// decline, cut into pieces of two points, has a half.
const TREND_MAX: f64 = 0.4;

/// Points of a level, at least.
const LEVEL_MIN: usize = 2;

/// Indices of the points at which the curve has fallen for good: each is the first point of a lower
/// level, so that the knee lies between it and the point before. `points` are (size, rate), sorted
/// by size; rates that are not above zero are nowhere near a knee and end the search.
pub fn knees(points: &[(f64, f64)]) -> Vec<usize> {
    let logs: Vec<f64> =
        points.iter().map(|(_, rate)| rate.ln()).take_while(|log| log.is_finite()).collect();
    if logs.len() < 2 * LEVEL_MIN {
        return Vec::new();
    }
    let starts = levels(&logs);
    let end = |index: usize| starts.get(index + 1).copied().unwrap_or(logs.len());
    let heights: Vec<f64> =
        (0..starts.len()).map(|index| median(&logs[starts[index]..end(index)])).collect();
    let fallen_at = |index: usize| {
        let highest_after = heights[index..].iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let (before, limit) = (heights[index - 1], -FALLEN.ln());
        let fall = before - highest_after;
        let flat = trend(&logs[starts[index - 1]..starts[index]]).abs() <= TREND_MAX * fall;
        // The cut may stand a point early, where a level would have been too short otherwise.
        let first = (starts[index]..end(index)).find(|at| before - logs[*at] > limit)?;
        (fall > limit && flat && logs.len() - first >= LEVEL_MIN).then_some(first)
    };
    (1..starts.len()).filter_map(fallen_at).collect()
}

/// Where the levels begin, the first at 0: the cheapest cut, by dynamic programming over its last
/// piece.
fn levels(logs: &[f64]) -> Vec<usize> {
    let price = (3.0 * noise(logs).powi(2) * (logs.len() as f64).ln()).max(0.02);
    // Cost and last piece's start of the best cut of the first `end` points.
    let mut best: Vec<(f64, usize)> = vec![(f64::INFINITY, 0); logs.len() + 1];
    best[0] = (0.0, 0);
    for end in LEVEL_MIN..=logs.len() {
        for start in 0..=end - LEVEL_MIN {
            let cost = best[start].0 + squared_error(&logs[start..end]) + price;
            if cost < best[end].0 {
                best[end] = (cost, start);
            }
        }
    }
    let mut starts = Vec::new();
    let mut end = logs.len();
    while end > 0 {
        end = best[end].1;
        starts.push(end);
    }
    starts.reverse();
    starts
}

/// Standard deviation of the noise, from the median step between neighbours: few steps are falls.
fn noise(logs: &[f64]) -> f64 {
    let steps: Vec<f64> = logs.windows(2).map(|pair| (pair[1] - pair[0]).abs()).collect();
    median(&steps) / (0.6745 * 2.0_f64.sqrt())
}

fn squared_error(logs: &[f64]) -> f64 {
    let mean = logs.iter().sum::<f64>() / logs.len() as f64;
    logs.iter().map(|log| (log - mean).powi(2)).sum()
}

/// How much a straight line through a level falls or rises from its first point to its last.
fn trend(logs: &[f64]) -> f64 {
    let middle = (logs.len() - 1) as f64 / 2.0;
    let mean = logs.iter().sum::<f64>() / logs.len() as f64;
    let (mut above, mut below) = (0.0, 0.0);
    for (index, log) in logs.iter().enumerate() {
        let x = index as f64 - middle;
        above += x * (log - mean);
        below += x * x;
    }
    if below > 0.0 { above / below * (logs.len() - 1) as f64 } else { 0.0 }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        count if count % 2 == 1 => sorted[middle],
        _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn curve(rates: &[f64]) -> Vec<(f64, f64)> {
        rates.iter().enumerate().map(|(index, rate)| (20.0 * (index + 1) as f64, *rate)).collect()
    }

    fn check(rates: &[f64], expected: &[usize]) {
        assert_eq!(knees(&curve(rates)), expected, "{rates:?}");
    }

    #[test]
    fn curves_without_a_knee() {
        check(&[], &[]);
        check(&[5.0], &[]);
        check(&[9.0, 1.0, 1.0], &[]);
        check(&[5.0; 12], &[]);
        check(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[]);
        // A steady decline has no place where it begins.
        let steady: Vec<f64> = (0..16).map(|index| 100.0 * 0.93_f64.powi(index)).collect();
        check(&steady, &[]);
        // A dip that recovers, and a fall of the last point only.
        check(&[9.0, 9.0, 9.0, 4.0, 4.0, 9.0, 9.0, 9.0], &[]);
        check(&[9.0, 9.0, 9.0, 9.0, 9.0, 4.0], &[]);
        check(&[9.0, 9.1, 9.0, 5.0, 5.1, 5.0, 5.0, 2.0], &[3]);
        // A fall of less than a fifth.
        check(&[9.0, 9.0, 9.0, 7.5, 7.5, 7.5], &[]);
    }

    #[test]
    fn one_knee() {
        check(&[26.0, 26.0, 26.0, 12.0, 12.0, 12.0], &[3]);
        check(&[10.0, 14.0, 26.0, 25.0, 26.0, 26.0, 12.0, 12.0, 11.0], &[6]);
        check(&[26.0, 25.0, 7.0, 7.5, 7.0], &[2]);
    }

    #[test]
    fn two_knees() {
        check(&[90.0, 91.0, 89.0, 90.0, 50.0, 51.0, 50.0, 20.0, 20.0, 21.0], &[4, 7]);
    }

    #[test]
    fn a_mean_rate_sinks_slowly_behind_its_knee() {
        // The first 60 MB at 26 MB/s, the rest at 6: what a whole file sees is in between.
        let mean = |size: f64| size / (size.min(60.0) / 26.0 + (size - 60.0).max(0.0) / 6.0);
        let rates: Vec<f64> = (1..16).map(|index| mean(f64::from(index) * 20.0)).collect();
        let found = knees(&curve(&rates));
        assert_eq!(found.len(), 1, "{found:?} of {rates:?}");
        assert!((3..=4).contains(&found[0]), "{found:?}");
    }

    #[test]
    fn a_rate_that_is_no_rate_ends_the_search() {
        check(&[9.0, 9.0, f64::NAN, 1.0, 1.0], &[]);
        check(&[9.0, 9.0, 0.0, 1.0, 1.0], &[]);
    }

    proptest! {
        #[test]
        fn noise_is_no_knee_and_hides_none(
            noise in proptest::collection::vec(-0.04_f64..0.04, 16),
            at in 3_usize..13,
        ) {
            let flat: Vec<f64> = noise.iter().map(|noise| 100.0 * noise.exp()).collect();
            prop_assert_eq!(knees(&curve(&flat)), Vec::<usize>::new());
            let fallen: Vec<f64> = flat
                .iter()
                .enumerate()
                .map(|(index, rate)| if index < at { *rate } else { rate * 0.5 })
                .collect();
            prop_assert_eq!(knees(&curve(&fallen)), vec![at]);
        }
    }
}
