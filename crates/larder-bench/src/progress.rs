//! Progress of a run: a bar with the remaining time on a terminal, plain lines elsewhere.

use std::cell::Cell;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// Shows the steps of a run on standard error.
#[derive(Debug)]
pub struct Progress {
    bar: Option<ProgressBar>,
    started: Instant,
    steps: u64,
    done: Cell<u64>,
}

impl Progress {
    /// For a run of `steps` steps at most.
    pub fn start(name: &str, steps: u64) -> Progress {
        if !std::io::stderr().is_terminal() {
            eprintln!("{name}: at most {steps} steps");
            return Progress { bar: None, started: Instant::now(), steps, done: Cell::new(0) };
        }
        let style = ProgressStyle::with_template(
            "{prefix} [{bar:30}] {pos}/{len} {msg} (at most {eta} left)",
        );
        let bar = ProgressBar::new(steps).with_style(style.expect("the template is well-formed"));
        bar.set_prefix(name.to_owned());
        bar.enable_steady_tick(Duration::from_millis(500));
        Progress { bar: Some(bar), started: Instant::now(), steps, done: Cell::new(0) }
    }

    /// Shows the present step.
    pub fn now(&self, what: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(what.to_owned());
        }
    }

    /// A step is done, with its result.
    pub fn done(&self, what: &str) {
        match &self.bar {
            Some(bar) => bar.inc(1),
            None => {
                self.done.set(self.done.get() + 1);
                eprintln!(
                    "{what}  ({})",
                    left(self.started.elapsed(), self.done.get(), self.steps)
                );
            }
        }
    }
}

/// The remaining time, if further steps take as long as those that are done.
fn left(elapsed: Duration, done: u64, steps: u64) -> String {
    let seconds = elapsed.as_secs_f64() / done.max(1) as f64 * steps.saturating_sub(done) as f64;
    match seconds {
        seconds if seconds < 90.0 => format!("at most {seconds:.0} s left"),
        seconds => format!("at most {:.0} min left", seconds / 60.0),
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_follows_from_what_was_done() {
        let left = |seconds, done| left(Duration::from_secs(seconds), done, 10);
        assert_eq!(left(30, 5), "at most 30 s left");
        assert_eq!(left(600, 5), "at most 10 min left");
        assert_eq!(left(600, 10), "at most 0 s left");
    }
}
