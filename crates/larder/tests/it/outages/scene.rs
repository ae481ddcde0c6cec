//! What the failure of a test of outages tells besides what was waited for: whether the server
//! answers, what the daemon says of itself, where callers and the worker wait, and how the last
//! calls ended.

use std::fmt::Write as _;
use std::fs;

use crate::harness::{Mount, Server, said};

use super::Work;

/// All of it. `Mount` and `Server` print their logs by themselves when a test fails.
pub(super) fn told(work: &Work, mount: &Mount, server: &Server) -> String {
    let mut text = format!("the server: {}\n", server.condition());
    let at = mount.path("");
    let at = at.to_str().unwrap();
    for args in [&["status", at][..], &["stat", at]] {
        let (code, told) = said(mount, args);
        writeln!(text, "larder {args:?}: {code:?}\n{}", told.trim_end()).unwrap();
    }
    let ends = work.ends.lock().unwrap();
    writeln!(text, "the last calls:\n{}", Vec::from(ends.clone()).join("\n")).unwrap();
    let (_, status) = said(mount, &["status", "--json", at]);
    let status = serde_json::from_str::<serde_json::Value>(&status).unwrap_or_default();
    let pids = ["pid", "worker_pid"].map(|name| status[name].as_u64());
    let own = Some(u64::from(std::process::id()));
    for pid in [own].into_iter().chain(pids).flatten() {
        writeln!(text, "process {pid} waits in:\n{}", stacks(pid)).unwrap();
    }
    text
}

/// Where each thread of a process waits in the kernel.
fn stacks(pid: u64) -> String {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let stack = |task: fs::DirEntry| {
        let read = |name| fs::read_to_string(task.path().join(name)).unwrap_or_default();
        let frames = read("stack");
        let frames = frames.lines().filter_map(|line| line.split_whitespace().nth(1));
        let frames = frames.filter_map(|frame| frame.split('+').next()).collect::<Vec<_>>();
        format!("  {}: {}", read("comm").trim_end(), frames.join(" < "))
    };
    tasks.map(stack).collect::<Vec<_>>().join("\n")
}
