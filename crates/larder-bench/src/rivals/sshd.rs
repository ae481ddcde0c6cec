//! An sshd that offers files and nothing else: with its own keys, configuration and port, for the
//! present user alone. The machine's own keys and configuration are not touched.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::server::{Server, free_address};
use crate::process::{find, succeed};
use crate::stand::Stand;

/// The directory into which sshd, run as root, changes its root: it must exist, and all sshds of
/// the machine share it.
const PRIVSEP_DIR: &str = "/run/sshd";

/// A running sshd and what a client needs to know of it.
#[derive(Debug)]
pub(super) struct Sshd {
    /// The process.
    pub server: Server,
    /// The user who may log in.
    pub user: String,
    /// With this key.
    pub key: PathBuf,
    /// Where its own key is written down.
    pub known_hosts: PathBuf,
}

impl Sshd {
    /// Starts one with its files in `dir`.
    ///
    /// # Errors
    /// If it cannot be started.
    pub(super) fn start(stand: &Stand, dir: &Path) -> Result<Sshd> {
        let (host_key, key) = (dir.join("host_key"), dir.join("user_key"));
        for file in [&host_key, &key] {
            let mut keygen = Command::new("ssh-keygen");
            succeed(keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(file))?;
        }
        let user = succeed(Command::new("id").arg("-un"))?.trim().to_owned();
        if rustix::process::geteuid().is_root() {
            fs::create_dir_all(PRIVSEP_DIR).context(PRIVSEP_DIR)?;
        }
        let address = free_address(stand)?;
        let config = dir.join("sshd_config");
        fs::write(&config, configuration(address, &host_key, &key.with_extension("pub")))?;
        // It starts itself again for each connection, by its full path.
        let mut command = Command::new(find("sshd").context("there is no sshd")?);
        command.args(["-D", "-e", "-f"]).arg(&config);
        let server = Server::start(stand, &mut command, address, &dir.join("sshd.log"))?;
        let known_hosts = dir.join("known_hosts");
        let public = fs::read_to_string(host_key.with_extension("pub"))?;
        fs::write(&known_hosts, known_host(server.address(), &public))?;
        Ok(Sshd { server, user, key, known_hosts })
    }
}

fn configuration(address: SocketAddr, host_key: &Path, authorized: &Path) -> String {
    let (host_key, authorized) = (host_key.display(), authorized.display());
    // StrictModes would refuse keys below /var/tmp, where every user may write.
    format!(
        "ListenAddress {address}\nHostKey {host_key}\nAuthorizedKeysFile {authorized}\nPidFile none\n\
         StrictModes no\nUsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n\
         PermitRootLogin prohibit-password\nAllowTcpForwarding no\nMaxStartups 100\nMaxSessions 100\n\
         Subsystem sftp internal-sftp\nForceCommand internal-sftp\n"
    )
}

/// A line of known_hosts(5) about the key in a `.pub` file.
fn known_host(address: SocketAddr, public: &str) -> String {
    format!("[{}]:{} {}\n", address.ip(), address.port(), public.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_client_gets_a_shell_and_hosts_are_known_by_port() {
        let address = SocketAddr::from(([10, 0, 0, 2], 2222));
        let text = configuration(address, Path::new("/k"), Path::new("/a.pub"));
        assert!(
            text.contains("ListenAddress 10.0.0.2:2222\nHostKey /k\nAuthorizedKeysFile /a.pub")
        );
        assert!(text.ends_with("ForceCommand internal-sftp\n"));
        assert_eq!(known_host(address, "ssh-ed25519 AA x\n"), "[10.0.0.2]:2222 ssh-ed25519 AA x\n");
    }
}
