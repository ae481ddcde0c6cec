//! `larder export`: a directory as an NFS export.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Result, bail};

/// Arguments of `larder export`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Without --root-squash and --no-root-squash, root of a client is root here only if the server \
listens on this machine alone (127.0.0.1 or ::1). Ids are believed as NFSv3 sends them: export to machines \
that you trust.\n\nExample:\n  larder export /srv/data --listen 127.0.0.1:12049"
)]
pub(crate) struct Args {
    /// The directory, exported as /
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Where to listen, for NFS and MOUNT, over TCP and UDP
    #[arg(long, value_name = "IP:PORT")]
    listen: SocketAddr,
    /// Treat root of a client as nobody
    #[arg(long, conflicts_with = "no_root_squash")]
    root_squash: bool,
    /// Treat root of a client as root
    #[arg(long)]
    no_root_squash: bool,
    /// Refuse every change
    #[arg(long)]
    read_only: bool,
}

/// Serves until a signal comes, then lets what is begun end.
///
/// # Errors
/// If the directory or the address cannot be used.
pub(crate) fn run(args: &Args) -> Result<()> {
    let _squash = args.squashes_root();
    let _ = (&args.dir, args.read_only);
    bail!("the server is not built yet")
}

impl Args {
    fn squashes_root(&self) -> bool {
        self.root_squash || !self.no_root_squash && !self.listen.ip().is_loopback()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_squashed_for_other_machines() {
        for (listen, root_squash, no_root_squash, squashes) in [
            ("127.0.0.1:1", false, false, false),
            ("127.0.0.1:1", true, false, true),
            ("[::1]:1", false, false, false),
            ("0.0.0.0:1", false, false, true),
            ("192.0.2.1:1", false, false, true),
            ("192.0.2.1:1", false, true, false),
        ] {
            let (dir, listen) = (PathBuf::new(), listen.parse().unwrap());
            let args = Args { dir, listen, root_squash, no_root_squash, read_only: false };
            assert_eq!(args.squashes_root(), squashes, "{args:?}");
        }
    }
}
