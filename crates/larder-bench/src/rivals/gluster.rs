//! GlusterFS: a volume of one brick. It has no cache on disk, but much in memory.
//!
//! Its daemons run in the network namespace with directories of their own, so that neither ports
//! nor settings of the machine's own are touched. Without a namespace it cannot take part: glusterd
//! takes no loopback address for a brick, and bricks choose ports that a proxy could not know.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result};

use super::fuse::{Mount, Plan, mountpoint};
use super::server::Server;
use super::{Entrant, FILES_TRUSTED_S, MEMORY_MIB, Parts, Rival};
use crate::process::{self, START_MAX, succeed, wait_for};
use crate::stand::Stand;

/// GlusterFS as a rival.
pub(super) const RIVAL: Rival = Rival {
    name: "gluster",
    programs: &["glusterd", "gluster", "glusterfs"],
    install: "apt-get install glusterfs-server glusterfs-client",
    start,
};

/// Where glusterd listens: bricks look for it at no other port.
const PORT: u16 = 24007;
const VOLUME: &str = "bench";

fn start(stand: &Stand, name: &str) -> Result<Entrant> {
    let netns = stand.netns().context(
        "needs a link that the kernel makes: run as root, with a --link of a rate and no delay or loss",
    )?;
    let inside = IpAddr::from(netns.inside());
    let (home, dir) = (stand.home(name)?, stand.home(&format!("{name}-server"))?);
    let server = glusterd(stand, &dir, (inside, PORT).into())?;
    let brick = dir.join("brick");
    fs::create_dir(&brick)?;
    let place = format!("{inside}:{}", brick.display());
    wait_until_it_answers(&dir)?;
    tell(&dir, &["volume", "create", VOLUME, &place, "force"])?;
    let memory = format!("{MEMORY_MIB}MB");
    tell(&dir, &["volume", "set", VOLUME, "performance.cache-size", &memory])?;
    tell(&dir, &["volume", "start", VOLUME])?;
    let log = home.join("client.log");
    let command = vec![
        "glusterfs".to_owned(),
        "--no-daemon".to_owned(),
        format!("--volfile-server={inside}"),
        format!("--volfile-id={VOLUME}"),
        format!("--attribute-timeout={FILES_TRUSTED_S}"),
        format!("--entry-timeout={FILES_TRUSTED_S}"),
        format!("--log-file={}", log.display()),
        mountpoint(&home).display().to_string(),
    ];
    let mount = Mount::new(Plan { home, cached: false, command, environment: Vec::new() })?;
    Ok(Entrant::new(
        name,
        Parts {
            mount: Arc::new(mount),
            servers: vec![server],
            // A brick must not be written to behind its back.
            back: None,
            stores: vec![brick],
            version: process::version("glusterfs", "--version"),
        },
    ))
}

/// The daemon that starts bricks and knows volumes.
fn glusterd(stand: &Stand, dir: &Path, address: SocketAddr) -> Result<Server> {
    for name in ["state", "run", "log"] {
        fs::create_dir_all(dir.join(name))?;
    }
    let config = dir.join("glusterd.vol");
    fs::write(&config, configuration(dir, address.ip()))?;
    let mut command = Command::new("glusterd");
    command.arg("--no-daemon");
    command.arg(format!("--volfile={}", config.display()));
    command.arg(format!("--log-file={}", dir.join("log/glusterd.log").display()));
    command.arg(format!("--pid-file={}", dir.join("run/glusterd.pid").display()));
    let server = Server::start(stand, &mut command, address, &dir.join("log/output"))?;
    Ok(server.ending_pids_below(&dir.join("run")))
}

/// The option of the odd name is the one that moves the logs of bricks.
fn configuration(dir: &Path, address: IpAddr) -> String {
    let dir = dir.display();
    format!(
        "volume management\n    type mgmt/glusterd\n    option transport-type socket\n    \
         option transport.socket.bind-address {address}\n    \
         option working-directory {dir}/state\n    option run-directory {dir}/run\n    \
         option glusterd-sockfile {dir}/run/glusterd.socket\n    \
         option cluster-test-mode {dir}/log\nend-volume\n"
    )
}

/// The daemon listens before it is ready for commands.
fn wait_until_it_answers(dir: &Path) -> Result<()> {
    let mut refused = None;
    let answered =
        wait_for("glusterd to answer", START_MAX, || match tell(dir, &["pool", "list"]) {
            Ok(_) => Ok(Some(())),
            Err(error) => {
                refused = Some(error);
                Ok(None)
            }
        });
    answered.with_context(|| refused.map_or_else(String::new, |error| format!("{error:#}")))
}

/// Tells the daemon something.
fn tell(dir: &Path, words: &[&str]) -> Result<String> {
    let mut command = Command::new("gluster");
    command.arg("--mode=script");
    command.arg(format!("--glusterd-sock={}", dir.join("run/glusterd.socket").display()));
    command.arg(format!("--log-file={}", dir.join("log/cli.log").display()));
    succeed(command.args(words)).with_context(|| format!("gluster {}", words.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_that_the_daemon_keeps_is_in_its_directory() {
        let text = configuration(Path::new("/d"), IpAddr::from([10, 0, 0, 2]));
        for word in ["bind-address 10.0.0.2\n", "sockfile /d/run/glusterd.socket\n", " /d/log\n"] {
            assert!(text.contains(word), "{text}");
        }
        assert!(text.starts_with("volume management\n") && text.ends_with("\nend-volume\n"));
    }
}
