//! A shell that keeps files open between commands, separate from the process of the tests: every
//! process that a test starts closes, and so flushes, a descriptor that the test has on a mount,
//! even while no worker serves.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::harness::eventually;

/// A running shell. It ends with its input.
pub(crate) struct Shell {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Shell {
    /// Starts `program`, a POSIX shell.
    pub(crate) fn new(mut program: Command) -> Shell {
        let mut child = program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Shell { child, input, output }
    }

    /// Runs a line, which must succeed; returns the last line of its output.
    pub(crate) fn run(&mut self, line: &str) -> String {
        self.begin(line);
        self.finish()
    }

    /// Begins to run a line.
    pub(crate) fn begin(&mut self, line: &str) {
        writeln!(self.input, "{{ {line}; }} 2>&1; echo \"ended $?\"").unwrap();
    }

    /// Waits until the shell itself waits for an answer of a FUSE mount.
    pub(crate) fn waits_for_mount(&self) {
        let place = format!("/proc/{}/wchan", self.child.id());
        eventually("it waits for the mount", || {
            let place = std::fs::read_to_string(&place).unwrap();
            place.contains("fuse") || place.contains("request_wait_answer")
        });
    }

    /// Waits for the line that was begun; see [`Shell::run`].
    pub(crate) fn finish(&mut self) -> String {
        let mut said = String::new();
        loop {
            let mut next = String::new();
            self.output.read_line(&mut next).unwrap();
            if let Some(code) = next.strip_prefix("ended ") {
                assert_eq!(code, "0\n", "{said}");
                return said.trim_end().to_owned();
            }
            assert!(!next.is_empty(), "the shell has ended: {said}");
            said = next;
        }
    }

    /// Ends it.
    pub(crate) fn end(mut self) {
        drop(self.input);
        assert!(self.child.wait().unwrap().success());
    }
}
