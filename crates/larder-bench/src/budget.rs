//! The RPC budget: a cached work never costs more calls than a plain one (as Badros reported of all
//! 26 runs).

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::link::Shape;
use crate::record::Test;
use crate::rpc::Calls;
use crate::runner::{self, Limits};
use crate::stand::{Contestant, Door, LARDER, PLAIN, Stand};
use crate::suite::{self, Size};

/// What one work cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cost {
    /// The work, as in `ls x4`.
    pub test: String,
    /// Calls of the plain client, or why it failed.
    pub plain: Result<Calls, String>,
    /// Calls of the cached one.
    pub cached: Result<Calls, String>,
}

impl Cost {
    /// Whether the cached client called no more often, and neither failed.
    pub fn is_within(&self) -> bool {
        match (&self.plain, &self.cached) {
            (Ok(plain), Ok(cached)) => total(cached) <= total(plain),
            _ => false,
        }
    }
}

/// Calls of all procedures.
pub fn total(calls: &Calls) -> u64 {
    calls.values().sum()
}

/// How long attributes are trusted while calls are counted. With the usual 5 and 30 seconds they run out in
/// the middle of some work, on either mount, sooner or later as the machine is slow or fast: counts
/// would depend on time.
const ATTRIBUTES: &[&str] = &["actimeo=86400"];

/// Runs the badros works once on a plain and a cached mount of an export of its own, and counts. Attributes
/// do not run out meanwhile; every open asks all the same (close-to-open).
///
/// # Errors
/// If the mounts cannot be made.
pub fn measure(larder: &Path, size: Size, interrupted: &AtomicBool) -> Result<Vec<Cost>> {
    let mut stand = Stand::new(larder, Door::Nfs, Shape::default())?;
    let plain = Contestant { options: ATTRIBUTES, ..PLAIN };
    let cached = Contestant { options: ATTRIBUTES, ..LARDER };
    let targets = [stand.mount(&plain)?, stand.mount(&cached)?];
    let suite = suite::by_name("badros", size)?;
    let once = Limits { rounds_min: 1, rounds_max: 1, relative_width: 0.0, time: Duration::MAX };
    let done = runner::run(&suite, &targets, once, interrupted, &mut |_| Ok(()))?;
    anyhow::ensure!(!done.interrupted, "interrupted");
    let cost = |test: &Test| {
        Ok(Cost {
            test: test.title(),
            plain: calls(test, "plain")?,
            cached: calls(test, "larder")?,
        })
    };
    done.tests.iter().map(cost).collect()
}

fn calls(test: &Test, target: &str) -> Result<Result<Calls, String>> {
    let sample = test.of(target).next().context("a test was not run")?;
    Ok(match &sample.failed {
        Some(reason) => Err(reason.clone()),
        None => Ok(sample.rpcs.clone().context("nobody counted the calls")?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_calls_or_a_failure_are_over_budget() {
        let calls =
            |count: u64| -> Result<Calls, String> { Ok([("READ".to_owned(), count)].into()) };
        let failed = || Err("wrong bytes".to_owned());
        for (plain, cached, within) in [
            (calls(3), calls(3), true),
            (calls(3), calls(2), true),
            (calls(3), calls(4), false),
            (failed(), calls(0), false),
            (calls(3), failed(), false),
        ] {
            let cost = Cost { test: "t".to_owned(), plain, cached };
            assert_eq!(cost.is_within(), within, "{cost:?}");
        }
    }
}
