//! sshfs: SFTP through the page cache, nothing on disk.

use std::sync::Arc;

use anyhow::Result;

use super::fuse::{Mount, Plan, mountpoint};
use super::sshd::Sshd;
use super::{Entrant, FILES_TRUSTED_S, NAMES_TRUSTED_S, Parts, Rival};
use crate::process;
use crate::stand::Stand;

/// sshfs as a rival.
pub(super) const RIVAL: Rival = Rival {
    name: "sshfs",
    programs: &["sshfs", "sshd", "ssh", "ssh-keygen"],
    install: "apt-get install sshfs openssh-server",
    start,
};

fn start(stand: &Stand, name: &str) -> Result<Entrant> {
    let (home, store) = (stand.home(name)?, stand.home(&format!("{name}-server/files"))?);
    let sshd = Sshd::start(stand, &stand.home(&format!("{name}-server"))?)?;
    let address = sshd.server.address();
    let source = format!("{}@{}:{}", sshd.user, address.ip(), store.display());
    // The page cache survives a close, as long as size and time of the file stay.
    let options = format!(
        "auto_cache,attr_timeout={FILES_TRUSTED_S},entry_timeout={FILES_TRUSTED_S},\
         dcache_timeout={NAMES_TRUSTED_S},dcache_stat_timeout={FILES_TRUSTED_S},port={},\
         IdentityFile={},UserKnownHostsFile={},BatchMode=yes",
        address.port(),
        sshd.key.display(),
        sshd.known_hosts.display()
    );
    let at = mountpoint(&home).display().to_string();
    let command = ["sshfs", "-f", "-F", "/dev/null", &source, &at, "-o", &options];
    let mount = Mount::new(Plan {
        home,
        cached: false,
        command: command.map(str::to_owned).to_vec(),
        environment: Vec::new(),
    })?;
    Ok(Entrant::new(
        name,
        Parts {
            mount: Arc::new(mount),
            servers: vec![sshd.server],
            back: Some(store.clone()),
            stores: vec![store],
            version: process::version("sshfs", "--version"),
        },
    ))
}
