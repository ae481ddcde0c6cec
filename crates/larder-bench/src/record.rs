//! The record of a run. This is the format of the files under `bench/runs/`: fields may be added,
//! not renamed. Everything a report says is computed from here.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::stats::{Summary, paired_ratio};

/// Version of the format.
pub const FORMAT: u32 = 1;

/// One suite, run on some targets: one JSON file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// [`FORMAT`].
    pub format: u32,
    /// Name of the suite: `badros`, `fscache`, `mbfs`, `basic5`, `snapdragon`, `lan`.
    pub suite: String,
    /// `smoke` or `full`.
    pub size: String,
    /// When it began, RFC 3339.
    pub started: String,
    /// How long it took, in seconds.
    pub elapsed_s: f64,
    /// It was interrupted: only finished results are here.
    pub interrupted: bool,
    /// Command that repeats it.
    pub command: String,
    /// Commit that the measuring program was built from, marked `-dirty` if its sources differed;
    /// `unknown` if it was not built in a checkout.
    pub larder: String,
    /// Where it ran.
    pub machine: Machine,
    /// The link to the servers, if it was made by us.
    pub link: Option<Link>,
    /// The method, in sentences for the report: what was dropped, what was subtracted.
    pub method: Vec<String>,
    /// The measured targets, in the order of the report.
    pub targets: Vec<Target>,
    /// Targets that were to be measured and were not, each with the reason:
    /// `juicefs: not installed (...)`.
    #[serde(default)]
    pub absent: Vec<String>,
    /// The tests, in the order of the suite.
    pub tests: Vec<Test>,
}

/// The machine of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Its name.
    pub host: String,
    /// Model of its processor.
    pub cpu: String,
    /// Processors.
    pub cpus: usize,
    /// Memory, in bytes.
    pub memory_bytes: u64,
    /// Release of the kernel.
    pub kernel: String,
    /// Name of the distribution.
    pub distribution: String,
    /// Load average of one minute when the run began: other activity of the machine.
    pub load: f64,
}

/// A link as asked for and as measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Link {
    /// How it was made: `netns+veth+tbf`, `proxy`, `loopback`.
    pub kind: String,
    /// The requested link, in words: `10 Mbit/s`.
    pub asked: String,
    /// Payload rate measured over a TCP connection before the run, in bits per second.
    pub rate_bits_per_s: f64,
    /// Median round trip of one byte, in microseconds.
    pub round_trip_us: f64,
}

/// The target.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Target {
    /// Name in the report: `larder`, `plain`, `local`, `rclone`...
    pub name: String,
    /// Type of the file system and what is mounted, from mountinfo.
    pub mounted: String,
    /// Mount options or command that made it.
    pub options: String,
    /// Version of the software, if known.
    pub version: String,
    /// Whether its files were placed directly on the server, not through it.
    pub furnished_behind: bool,
}

/// A test of the suite, on all targets.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Test {
    /// Name as published: `read-big-again`.
    pub name: String,
    /// Parallel copies or clients: 1, 4, 10.
    pub copies: u32,
    /// The swept parameter, if the suite sweeps one: `{"file size MB": 20.0}`.
    pub at: BTreeMap<String, f64>,
    /// Unit of the samples: `s`, `B/s`, `files/s`, `us`.
    pub unit: String,
    /// Whether more is better.
    pub more_is_better: bool,
    /// Every sample, in the order in which they were taken.
    pub samples: Vec<Sample>,
}

/// One test, once, on one target.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Name of the target.
    pub target: String,
    /// Samples of the same round belong together.
    pub round: u32,
    /// The measurement, above zero, in the unit of the test; `None` if it failed.
    pub value: Option<f64>,
    /// Why it failed: an error, or wrong bytes.
    pub failed: Option<String>,
    /// CPU time of a compiler that was subtracted from `value`, in seconds.
    pub subtracted_s: Option<f64>,
    /// State of the page cache before it began, as verified: `dropped, 0 bytes resident`.
    pub page_cache: Option<String>,
    /// RPCs by procedure, if they were counted.
    pub rpcs: Option<BTreeMap<String, u64>>,
    /// The duration of calls by procedure, from the offer to the reply, in microseconds: the sum
    /// over all calls, many of which may have been in flight at the same time. Only daemons know
    /// it.
    #[serde(default)]
    pub rpc_time_us: Option<BTreeMap<String, u64>>,
    /// The source of the counts: `daemon` or `server`.
    pub rpcs_by: Option<String>,
    /// Further measurements, by name with unit, of the time while the work ran: `server_cpu_s` and
    /// `daemon_cpu_s` are the CPU time of the processes of the server, and of all daemons of the
    /// target; `elapsed_s` is the time of a work whose result is a rate; `daemon_switches` how
    /// often threads of the daemons went to sleep, `daemon_file_calls` their calls like read(2)
    /// and write(2), `index_commits` and `index_log_writes` transactions of the caches'
    /// indices and writes to their session logs.
    pub extra: BTreeMap<String, f64>,
}

impl Run {
    /// The target of a name.
    pub fn target(&self, name: &str) -> Option<&Target> {
        self.targets.iter().find(|target| target.name == name)
    }
}

impl Test {
    /// Name with the number of copies, as the published texts write it: `ls x4`.
    pub fn title(&self) -> String {
        let at: String = self.at.iter().map(|(name, value)| format!(" {name}={value}")).collect();
        match self.copies {
            1 => format!("{}{at}", self.name),
            copies => format!("{} x{copies}{at}", self.name),
        }
    }

    /// Samples of a target.
    pub fn of(&self, target: &str) -> impl Iterator<Item = &Sample> {
        self.samples.iter().filter(move |sample| sample.target == target)
    }

    /// Why a target failed, if it did so even once: then it has no result at all.
    pub fn failure(&self, target: &str) -> Option<&str> {
        self.of(target).find_map(|sample| sample.failed.as_deref())
    }

    /// The result of a target's samples; `None` if it failed or was not measured.
    pub fn summary(&self, target: &str) -> Option<Summary> {
        if self.failure(target).is_some() {
            return None;
        }
        let values: Vec<f64> = self.of(target).filter_map(|sample| sample.value).collect();
        Summary::of(&values)
    }

    /// How many times as long as `theirs` `ours` took, from rounds in which both were measured. For
    /// rates the inverse, so that below one is always better. `None` if either failed.
    pub fn time_ratio(&self, ours: &str, theirs: &str) -> Option<Summary> {
        self.time_ratio_to(ours, self, theirs)
    }

    /// The same where theirs is of another test, in the same unit.
    pub fn time_ratio_to(&self, ours: &str, other: &Test, theirs: &str) -> Option<Summary> {
        if self.failure(ours).is_some() || other.failure(theirs).is_some() {
            return None;
        }
        let (mut one, mut two) = (Vec::new(), Vec::new());
        for sample in self.of(ours) {
            let same = other.of(theirs).find(|same| same.round == sample.round);
            if let (Some(a), Some(b)) = (sample.value, same.and_then(|same| same.value)) {
                one.push(a);
                two.push(b);
            }
        }
        if self.more_is_better { paired_ratio(&two, &one) } else { paired_ratio(&one, &two) }
    }

    /// Median number of RPCs of a target in a run of the test, over all procedures.
    pub fn rpcs(&self, target: &str) -> Option<f64> {
        Some(self.rpcs_by_procedure(target)?.values().sum::<u64>() as f64)
    }

    /// The duration of calls by procedure, of all clients together, in the sample whose total is
    /// the median.
    pub fn rpc_times_us(&self, target: &str) -> Option<&BTreeMap<String, u64>> {
        let timed = self.of(target).filter_map(|sample| sample.rpc_time_us.as_ref());
        median_of(timed.collect())
    }

    /// RPCs by procedure in the sample whose total is the median: they add up to [`Test::rpcs`].
    pub fn rpcs_by_procedure(&self, target: &str) -> Option<&BTreeMap<String, u64>> {
        median_of(self.of(target).filter_map(|sample| sample.rpcs.as_ref()).collect())
    }
}

/// That of some counts by name whose total is the median.
fn median_of(mut counted: Vec<&BTreeMap<String, u64>>) -> Option<&BTreeMap<String, u64>> {
    counted.sort_by_key(|counts| counts.values().sum::<u64>());
    counted.get(counted.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(target: &str, round: u32, value: Option<f64>) -> Sample {
        let failed = value.is_none().then(|| "wrong bytes".to_owned());
        Sample { target: target.to_owned(), round, value, failed, ..Sample::default() }
    }

    #[test]
    fn a_target_that_failed_once_has_no_result() {
        let samples =
            vec![sample("a", 0, Some(1.0)), sample("a", 1, None), sample("b", 0, Some(2.0))];
        let test = Test { samples, copies: 1, ..Test::default() };
        assert_eq!(test.failure("a"), Some("wrong bytes"));
        assert_eq!(test.summary("a"), None);
        assert_eq!(test.time_ratio("a", "b"), None);
        assert_eq!(test.summary("b").unwrap().median, 2.0);
    }

    #[test]
    fn ratios_pair_rounds_and_turn_rates_around() {
        let samples = vec![
            sample("a", 0, Some(1.0)),
            sample("a", 2, Some(3.0)),
            sample("b", 2, Some(6.0)),
            sample("b", 1, Some(9.0)),
        ];
        let mut test = Test { samples, copies: 4, name: "ls".to_owned(), ..Test::default() };
        assert_eq!(test.time_ratio("a", "b").unwrap().median, 0.5);
        test.more_is_better = true;
        assert_eq!(test.time_ratio("a", "b").unwrap().median, 2.0);
        assert_eq!(test.title(), "ls x4");
    }
}
