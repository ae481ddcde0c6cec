//! Progress of a run: a bar with the remaining time on a terminal, plain lines elsewhere.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// Shows the steps of a run on standard error.
#[derive(Debug)]
pub struct Progress {
    bar: Option<ProgressBar>,
}

impl Progress {
    /// For a run of `steps` steps at most.
    pub fn start(name: &str, steps: u64) -> Progress {
        if !std::io::stderr().is_terminal() {
            eprintln!("{name}: at most {steps} steps");
            return Progress { bar: None };
        }
        let style = ProgressStyle::with_template(
            "{prefix} [{bar:30}] {pos}/{len} {msg} (at most {eta} left)",
        );
        let bar = ProgressBar::new(steps).with_style(style.expect("the template is well-formed"));
        bar.set_prefix(name.to_owned());
        bar.enable_steady_tick(Duration::from_millis(500));
        Progress { bar: Some(bar) }
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
            None => eprintln!("{what}"),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
