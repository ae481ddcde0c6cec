//! The RPC budget: a cached work never costs more calls than a plain one (as Badros reported for
//! all 26 runs).

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::link::Shape;
use crate::record::Test;
use crate::rpc::Calls;
use crate::runner::{self, Limits};
use crate::stand::{Contestant, LARDER, PLAIN, Protocol, Stand, Wants};
use crate::suite::{self, Size};

/// The cost of one work.
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
    /// Whether the cached client made no more calls, and neither failed. `excused` are calls of the
    /// cached one with another explanation: those that [`expiry`] found.
    pub fn is_within(&self, excused: &Calls) -> bool {
        let excused: u64 = excused
            .iter()
            .filter(|(name, _)| REVALIDATIONS.contains(&name.as_str()))
            .map(|(_, calls)| calls)
            .sum();
        match (&self.plain, &self.cached) {
            (Ok(plain), Ok(cached)) => total(cached) <= total(plain) + excused,
            _ => false,
        }
    }

    /// The cheaper of two rounds, for each client. Other activity on the machine only adds calls: a
    /// late release or open, readahead that was overtaken.
    fn least(self, other: Cost) -> Cost {
        let least = |one: Result<Calls, String>, other: Result<Calls, String>| match (one, other) {
            (Ok(one), Ok(other)) if total(&other) < total(&one) => Ok(other),
            (Ok(one), Ok(_)) => Ok(one),
            (Err(reason), _) | (_, Err(reason)) => Err(reason),
        };
        let (plain, cached) = (least(self.plain, other.plain), least(self.cached, other.cached));
        Cost { test: self.test, plain, cached }
    }
}

/// Procedures that check whether something has changed.
const REVALIDATIONS: [&str; 3] = ["GETATTR", "LOOKUP", "ACCESS"];

/// Calls of all procedures.
pub fn total(calls: &Calls) -> u64 {
    calls.values().sum()
}

/// How long attributes are trusted while calls are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timeouts {
    /// A day: no attribute expires, so the same work costs the same calls on a slow machine and on
    /// a fast one.
    Day,
    /// 5 s for files and 30 s for directories, as published. They expire in the middle of some
    /// work, on either mount, at a point that depends on the speed of the machine.
    Published,
}

impl Timeouts {
    fn options(self) -> &'static [&'static str] {
        match self {
            Timeouts::Day => &["actimeo=86400"],
            Timeouts::Published => &["acregmin=5", "acregmax=5", "acdirmin=30", "acdirmax=30"],
        }
    }
}

/// Runs the badros works on a plain and a cached mount of an export of its own, and counts; of
/// several rounds, each with mounts of its own, the smallest count is used, work by work. Every
/// open asks the server (close-to-open), whatever the `timeouts`.
///
/// # Errors
/// If the mounts cannot be made.
pub fn measure(
    larder: &Path,
    size: Size,
    timeouts: Timeouts,
    rounds: u32,
    interrupted: &AtomicBool,
) -> Result<Vec<Cost>> {
    let mut least = round(larder, size, timeouts, interrupted)?;
    for _ in 1..rounds {
        let next = round(larder, size, timeouts, interrupted)?;
        least = least.into_iter().zip(next).map(|(one, other)| one.least(other)).collect();
    }
    Ok(least)
}

fn round(
    larder: &Path,
    size: Size,
    timeouts: Timeouts,
    interrupted: &AtomicBool,
) -> Result<Vec<Cost>> {
    let mut stand = Stand::new(larder, Protocol::Nfs, Shape::default(), Wants::default())?;
    let plain = Contestant { options: timeouts.options(), ..PLAIN };
    let cached = Contestant { options: timeouts.options(), ..LARDER };
    let targets = [stand.mount(&plain, 1)?, stand.mount(&cached, 1)?];
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

/// The calls that expired attributes add to a work: calls by procedure of `published` beyond those
/// of `day`. If one of them failed, none.
pub fn expiry(day: &Result<Calls, String>, published: &Result<Calls, String>) -> Calls {
    match (day, published) {
        (Ok(day), Ok(published)) => crate::rpc::since(day, published),
        _ => Calls::new(),
    }
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
            assert_eq!(cost.is_within(&Calls::new()), within, "{cost:?}");
        }
    }

    #[test]
    fn what_running_out_adds_is_told_and_excused_but_no_other_call() {
        let calls = |names: &[(&str, u64)]| -> Result<Calls, String> {
            Ok(names.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect())
        };
        let day = calls(&[("READ", 3), ("LOOKUP", 1)]);
        for (published, within) in [
            (calls(&[("READ", 3), ("LOOKUP", 1)]), true),
            (calls(&[("READ", 3), ("LOOKUP", 2), ("GETATTR", 1)]), true),
            (calls(&[("READ", 4), ("LOOKUP", 1)]), false),
        ] {
            let added = expiry(&day, &published);
            let cost = Cost { test: "t".to_owned(), plain: day.clone(), cached: published };
            assert_eq!(cost.is_within(&added), within, "{cost:?}");
        }
        let cost = |plain, cached| Cost { test: "t".to_owned(), plain, cached };
        let two = calls(&[("READ", 2)]);
        let least = cost(day.clone(), two.clone()).least(cost(two.clone(), day.clone()));
        assert_eq!(least, cost(two.clone(), two.clone()));
        let failed = cost(two.clone(), two).least(cost(Err("broken".to_owned()), day));
        assert!(failed.plain.is_err());
    }
}
