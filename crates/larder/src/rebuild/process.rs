//! `larder rebuild` in a process of its own: as the user whose daemon this is, or as another one.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::report::Remade;

/// What `larder rebuild` did with a file when root ran it as `user`: that is the file's owner.
/// Blocks.
pub(crate) fn remade_as(user: u32, file: &Path) -> Vec<Remade> {
    remade_apart(Some(user), file).unwrap_or_else(|why| {
        let why = format!("it could not be tried as user {user}: {why}");
        let (path, outcome) = (file.display().to_string(), "not-tried".to_owned());
        vec![Remade { path, outcome, why: Some(why) }]
    })
}

/// What `larder rebuild` did with a file. Another user's process gets nothing of this one's
/// environment. Blocks.
///
/// # Errors
/// A line for the user: it could not be run, or did not report anything.
fn remade_apart(user: Option<u32>, file: &Path) -> Result<Vec<Remade>, String> {
    told_by(begin_apart(user, file)?)
}

/// Begins to make a file in a process of its own.
///
/// # Errors
/// A line for the user: it could not be run.
pub(super) fn begin_apart(user: Option<u32>, file: &Path) -> Result<Child, String> {
    let mut command = Command::new("/proc/self/exe");
    command.args(["rebuild", "--json", "--noticed", "--"]).arg(file).current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    if let Some(user) = user {
        command.env_clear().uid(user).gid(primary_group(user));
    }
    command.spawn().map_err(|error| format!("larder rebuild cannot be run: {error}"))
}

/// What such a process reports. Blocks until it has ended.
///
/// # Errors
/// A line for the user: it did not report anything.
pub(super) fn told_by(child: Child) -> Result<Vec<Remade>, String> {
    let ended = child.wait_with_output();
    let ended = ended.map_err(|error| format!("larder rebuild was lost: {error}"))?;
    serde_json::from_slice(&ended.stdout)
        .map_err(|_| String::from_utf8_lossy(&ended.stderr).trim().to_owned())
}

/// The group that a user has by default: not that of a file, which may be another.
fn primary_group(user: u32) -> u32 {
    const NOBODY: u32 = 65_534;
    let all = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let mut found = all.lines().filter_map(|line| {
        let mut fields = line.split(':').skip(2);
        let id: u32 = fields.next()?.parse().ok()?;
        let group = fields.next()?.parse().ok()?;
        (id == user).then_some(group)
    });
    found.next().unwrap_or(NOBODY)
}
