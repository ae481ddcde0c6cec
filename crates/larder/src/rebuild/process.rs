//! `larder rebuild` in a process of its own: as the user whose daemon this is, or as another one.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

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
pub(super) fn remade_apart(user: Option<u32>, file: &Path) -> Result<Vec<Remade>, String> {
    let mut command = Command::new("/proc/self/exe");
    command.args(["rebuild", "--json", "--"]).arg(file).current_dir("/").stdin(Stdio::null());
    if let Some(user) = user {
        command.env_clear().uid(user).gid(primary_group(user));
    }
    let ended =
        command.output().map_err(|error| format!("larder rebuild cannot be run: {error}"))?;
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
