//! Sanitizes records before computing with them: they come from files that may have been edited.
//!
//! After [`sanitized`] every value is within limits within which no ratio over- or underflows, and
//! a sample that was not becomes a failed one that says so; every target that has a sample is in
//! the list of targets. The raw data of a report are the runs as they were given.

use crate::record::{Run, Sample, Target};

/// Values outside are not measurements: a nanosecond's millionth, and a million years or exabytes.
const VALUE_MIN: f64 = 1e-15;
const VALUE_MAX: f64 = 1e20;

/// The run, safe to compute with.
pub(crate) fn sanitized(run: &Run) -> Run {
    let mut run = run.clone();
    for test in &mut run.tests {
        test.at.retain(|_, value| value.is_finite() && value.abs() <= VALUE_MAX);
        for sample in &mut test.samples {
            sanitize(sample);
            if !run.targets.iter().any(|target| target.name == sample.target) {
                run.targets.push(Target { name: sample.target.clone(), ..Target::default() });
            }
        }
    }
    run
}

fn sanitize(sample: &mut Sample) {
    let fits = |value: f64| (VALUE_MIN..=VALUE_MAX).contains(&value);
    if let Some(value) = sample.value.filter(|value| !fits(*value)) {
        sample.value = None;
        let reason = format!("the record holds {value:e}, which is no measurement");
        sample.failed.get_or_insert(reason);
    }
    if sample.value.is_none() && sample.failed.is_none() {
        sample.failed = Some("neither a value nor a reason was recorded".to_owned());
    }
    if sample.failed.as_deref().is_some_and(|reason| reason.trim().is_empty()) {
        sample.failed = Some("no reason was recorded".to_owned());
    }
    sample.extra.retain(|_, value| value.is_finite());
}

/// A run of nothing, for tests.
#[cfg(test)]
pub(crate) fn empty_run() -> Run {
    Run {
        format: crate::record::FORMAT,
        suite: "badros".to_owned(),
        size: "smoke".to_owned(),
        started: "2026-11-21T15:16:30Z".to_owned(),
        elapsed_s: 1.0,
        interrupted: false,
        command: String::new(),
        larder: String::new(),
        machine: crate::record::Machine::default(),
        link: None,
        method: Vec::new(),
        targets: Vec::new(),
        absent: Vec::new(),
        tests: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use crate::record::Test;

    use super::*;

    #[test]
    fn what_is_no_measurement_becomes_a_failure() {
        let sample =
            |value: Option<f64>| Sample { target: "a".to_owned(), value, ..Sample::default() };
        let values = [Some(1.0), Some(0.0), Some(-1.0), Some(f64::NAN), Some(1e300), None];
        let test = Test { samples: values.map(sample).to_vec(), ..Test::default() };
        let run = sanitized(&Run { tests: vec![test], ..empty_run() });
        assert_eq!(run.targets.len(), 1);
        let failed = run.tests[0].samples.iter().filter(|sample| sample.failed.is_some()).count();
        assert_eq!(failed, 5);
        assert!(run.tests[0].samples[1..].iter().all(|sample| sample.value.is_none()));
    }
}
