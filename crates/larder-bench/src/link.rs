//! Links to servers that are as slow as asked, for benchmarks on one machine.
//!
//! Two ways, with different virtues:
//!
//! | | [`netns`] | [`proxy`] |
//! |---|---|---|
//! | what it is | a network namespace behind a veth pair, `tc tbf` on both ends | a program that forwards TCP and UDP |
//! | needs | root, `ip`, `tc` | nothing |
//! | rate | of frames, headers and acknowledgements included | of payload |
//! | TCP over it | the kernel's own: slow start, queue, drops, retransmissions | ends on this side, so none of these |
//! | delay, loss | none: `tc netem` is not in every kernel | delay; loss of datagrams |
//!
//! They compose: a proxy with a delay and no rate, before a server in a namespace. [`measure`]
//! measures the rate and delay of a connection over either, for the record of a run.
//!
//! A *shape* is the requested rate, delay and loss of a link. A *wire* is one direction of it.

mod background;
mod line;
pub mod measure;
pub mod netns;
pub mod proxy;
mod timer;
mod wire;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

/// The longest delay that makes sense: no client waits longer for a reply.
const DELAY_MAX: Duration = Duration::from_secs(60);

/// The requested properties of a link, the same in both directions. The default changes nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Shape {
    /// Bits per second, above zero; `None` is as fast as the machine.
    pub rate_bits_per_s: Option<u64>,
    /// The delay of everything in one direction: half of what is added to a round trip.
    pub delay: Duration,
    /// Which share of the datagrams never arrives, from 0 to 1.
    pub loss: f64,
}

impl Shape {
    /// Of a rate alone.
    pub fn of_rate(rate_bits_per_s: u64) -> Shape {
        Shape { rate_bits_per_s: Some(rate_bits_per_s), ..Shape::default() }
    }

    /// # Errors
    /// If it is invalid: a rate of zero, an excessive delay, or a loss that is not a share.
    fn check(&self) -> Result<()> {
        ensure!(self.delay <= DELAY_MAX, "the delay of a link is at most {DELAY_MAX:?}");
        ensure!(self.rate_bits_per_s != Some(0), "the rate of a link must be above zero");
        ensure!((0.0..=1.0).contains(&self.loss), "loss is a share from 0 to 1, not {}", self.loss);
        Ok(())
    }
}

/// In words, as records have it: `10 Mbit/s, 5 ms each way, 1 % of datagrams lost`.
impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rate_bits_per_s {
            Some(rate) => f.write_str(&in_words(rate))?,
            None => f.write_str("no limit")?,
        }
        if !self.delay.is_zero() {
            write!(f, ", {} ms each way", self.delay.as_secs_f64() * 1e3)?;
        }
        if self.loss > 0.0 {
            write!(f, ", {} % of datagrams lost", self.loss * 100.0)?;
        }
        Ok(())
    }
}

/// As typed: a rate (`10mbit`, `1.5gbit`, `64kbit`), then `delay=20ms` each way, or `rtt=40ms` in
/// both together, and `loss=1%` after commas, in any order and all optional; `none` changes
/// nothing.
impl FromStr for Shape {
    type Err = anyhow::Error;

    fn from_str(typed: &str) -> Result<Shape> {
        let mut shape = Shape::default();
        for part in typed.split(',').filter(|part| *part != "none") {
            let read = match part.split_once('=') {
                Some(("delay", delay)) => milliseconds(delay).map(|delay| shape.delay = delay),
                Some(("rtt", both)) => milliseconds(both).map(|both| shape.delay = both / 2),
                Some(("loss", loss)) => {
                    number(loss, "%").map(|percent| shape.loss = percent / 100.0)
                }
                Some(_) => None,
                None => rate(part).map(|rate| shape.rate_bits_per_s = Some(rate)),
            };
            read.with_context(|| {
                format!("{part}: a link is written 10mbit,delay=20ms,loss=1%, or none")
            })?;
        }
        shape.check()?;
        Ok(shape)
    }
}

fn rate(typed: &str) -> Option<u64> {
    let units = [("kbit", 1e3), ("mbit", 1e6), ("gbit", 1e9)];
    let mut read = units.iter().filter_map(|(unit, factor)| Some(number(typed, unit)? * factor));
    read.next().map(|rate| rate as u64)
}

fn milliseconds(typed: &str) -> Option<Duration> {
    number(typed, "ms").map(|ms| Duration::from_secs_f64(ms / 1e3))
}

/// A number from 0 on, and its unit.
fn number(typed: &str, unit: &str) -> Option<f64> {
    let number: f64 = typed.strip_suffix(unit)?.parse().ok()?;
    (0.0..1e12).contains(&number).then_some(number)
}

fn in_words(rate_bits_per_s: u64) -> String {
    let rate = rate_bits_per_s as f64;
    match rate_bits_per_s {
        0..1_000 => format!("{rate} bit/s"),
        1_000..1_000_000 => format!("{} kbit/s", rate / 1e3),
        1_000_000..1_000_000_000 => format!("{} Mbit/s", rate / 1e6),
        _ => format!("{} Gbit/s", rate / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_read_as_typed() {
        let delay = Duration::from_micros(20_500);
        for (typed, shape) in [
            ("none", Shape::default()),
            ("10mbit", Shape::of_rate(10_000_000)),
            ("1.5gbit", Shape::of_rate(1_500_000_000)),
            ("64kbit,loss=1%", Shape { loss: 0.01, ..Shape::of_rate(64_000) }),
            ("delay=20.5ms", Shape { delay, ..Shape::default() }),
            ("rtt=41ms", Shape { delay, ..Shape::default() }),
        ] {
            assert_eq!(typed.parse::<Shape>().unwrap(), shape, "{typed}");
        }
        for typed in [
            "",
            "10",
            "fast",
            "10mbit,colour=red",
            "loss=101%",
            "0mbit",
            "delay=-1ms",
            "delay=1e9ms",
        ] {
            assert!(typed.parse::<Shape>().is_err(), "{typed}");
        }
    }

    #[test]
    fn shapes_are_told_in_words() {
        let delay = Duration::from_micros(2500);
        for (shape, words) in [
            (Shape::default(), "no limit"),
            (Shape::of_rate(500), "500 bit/s"),
            (Shape::of_rate(56_000), "56 kbit/s"),
            (Shape::of_rate(10_000_000), "10 Mbit/s"),
            (Shape::of_rate(2_500_000_000), "2.5 Gbit/s"),
            (Shape { delay, ..Shape::default() }, "no limit, 2.5 ms each way"),
            (Shape { loss: 0.25, ..Shape::of_rate(1_000_000) }, "1 Mbit/s, 25 % of datagrams lost"),
        ] {
            assert_eq!(shape.to_string(), words);
        }
    }

    #[test]
    fn what_is_no_link_is_refused() {
        let of_loss = |loss| Shape { loss, ..Shape::default() };
        for (shape, fine) in [
            (Shape::default(), true),
            (Shape::of_rate(1), true),
            (Shape::of_rate(0), false),
            (of_loss(1.0), true),
            (of_loss(1.1), false),
            (of_loss(-0.1), false),
            (of_loss(f64::NAN), false),
            (Shape { delay: DELAY_MAX, ..Shape::default() }, true),
            (Shape { delay: DELAY_MAX * 2, ..Shape::default() }, false),
        ] {
            assert_eq!(shape.check().is_ok(), fine, "{shape:?}");
        }
    }
}
