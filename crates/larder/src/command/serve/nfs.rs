//! The NFS export of a volume in the process that serves it: one more client of the volume.
//!
//! It is composed of the parts of `larder export --source larder://HOST/ --cache none`. Only the
//! way to the servers is its own: a socket of the metadata server on loopback ([`Inside`]).

use std::net::SocketAddr;

use anyhow::{Context, Result, bail};
use larder_nfsd::{Network, Sockets};
use larder_wire::capability::VolumeId;
use larder_wire::meta::PORT;

use crate::backend::{Backend, Inside, NO_CACHE};
use crate::classes::IfWrong;
use crate::error::Usage;
use crate::export::{Exported, Terms, root_squash};
use crate::signals::Ends;
use crate::volume::{Listening, reached_at};

/// Options of the export, named as those of `larder export`.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct Nfs {
    /// Serve NFSv3 clients too, as `larder export` does: listen there for NFS and MOUNT, over TCP
    /// and UDP (unless --nfs-no-udp); port 0 chooses a free one
    #[arg(long, value_name = "IP:PORT")]
    nfs: Option<SocketAddr>,
    /// Treat root of an NFS client as nobody [default: unless --nfs names this machine alone]
    #[arg(long, requires = "nfs", conflicts_with = "nfs_no_root_squash")]
    nfs_root_squash: bool,
    /// Treat root of an NFS client as root
    #[arg(long, requires = "nfs")]
    nfs_no_root_squash: bool,
    /// Which machines may call over NFS, as in 192.0.2.0/24; may be given more than once [default:
    /// this machine if --nfs names it alone, otherwise every machine]
    #[arg(long, value_name = "NETWORK", requires = "nfs")]
    nfs_allow: Vec<Network>,
    /// Listen for NFS over TCP only, because the sender of a datagram can be forged
    #[arg(long, requires = "nfs")]
    nfs_no_udp: bool,
    /// Accept NFS calls from ports above 1023 too: every user on a client machine can then claim to
    /// be any other
    #[arg(long, requires = "nfs")]
    nfs_insecure: bool,
    /// Refuse every change over NFS
    #[arg(long, requires = "nfs")]
    nfs_read_only: bool,
}

/// An export that has its sockets: whoever calls waits until the volume is served.
pub(super) struct Export {
    sockets: Sockets,
    back: Backend,
}

impl Nfs {
    /// Binds the sockets of the export, if there is to be one.
    ///
    /// # Errors
    /// If the address or the options cannot be used.
    pub(super) async fn bind(&self, listening: &Listening) -> Result<Option<Export>> {
        let Some(terms) = self.terms() else { return Ok(None) };
        if !listening.insecure && !rustix::process::geteuid().is_root() {
            let why = "the metadata server believes root alone: --nfs needs root, or --insecure";
            bail!(Usage(why.to_owned()));
        }
        // Its port is known when the metadata server listens.
        let source = SocketAddr::new(reached_at(listening.listen).ip(), PORT);
        let source = format!("larder://{source}/");
        let back = Backend::find(&source, Some(NO_CACHE.as_ref()), &[], IfWrong::Refuse);
        let mut back = back.context("--nfs")?;
        back.options.flags.read_only |= self.nfs_read_only;
        let sockets = Sockets::bind(terms.config()?).await.context("--nfs")?;
        Ok(Some(Export { sockets, back }))
    }

    fn terms(&self) -> Option<Terms> {
        Some(Terms {
            listen: self.nfs?,
            root_squash: root_squash(self.nfs_root_squash, self.nfs_no_root_squash),
            allow: self.nfs_allow.clone(),
            udp: !self.nfs_no_udp,
            insecure: self.nfs_insecure,
        })
    }
}

impl Export {
    /// Opens the volume as a client, and serves it until a signal arrives; then sends what waits,
    /// and ends the client's session. The volume's servers must serve all the while: the metadata
    /// server clients at `address`, and this one at `inside`.
    ///
    /// # Errors
    /// If the volume cannot be opened, or not be closed in order.
    pub(super) async fn serve(
        mut self,
        volume: VolumeId,
        (address, inside): (SocketAddr, SocketAddr),
        ends: &mut Ends,
    ) -> Result<()> {
        self.back.source.port = Some(address.port());
        // The volume's id names the client in all its lives: one that was killed holds up nobody
        // when the next one is there.
        let (disks, client) = (reached_at(address).ip(), volume.0);
        self.back.inside = Some(Inside { metadata: inside, disks, client });
        let (exported, fs) = tokio::select! {
            opened = Exported::source(self.back) => opened.context("cannot serve NFS clients")?,
            () = ends.come() => return Ok(()),
        };
        exported.serve(self.sockets, fs, ends).await
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        nfs: Nfs,
    }

    fn terms(typed: &[&str]) -> Result<Option<Terms>, clap::Error> {
        Line::try_parse_from([&["serve"], typed].concat()).map(|line| line.nfs.terms())
    }

    /// Those that `larder export` takes, by the same names.
    #[test]
    fn the_options_of_the_export_are_those_of_larder_export() {
        use clap::CommandFactory;
        let own: Vec<_> = Line::command().get_arguments().map(|one| one.get_id().clone()).collect();
        let command = crate::Cli::command();
        let export = command.find_subcommand("export").unwrap();
        let theirs: Vec<_> = export.get_arguments().map(|one| one.get_id().as_str()).collect();
        for id in own.iter().filter(|id| id.as_str() != "nfs") {
            let name = id.as_str().strip_prefix("nfs_").unwrap();
            assert!(theirs.contains(&name), "{name} is not in {theirs:?}");
        }
    }

    #[test]
    fn who_may_call_over_nfs_follows_from_the_options() {
        assert!(terms(&[]).unwrap().is_none());
        let here = terms(&["--nfs", "127.0.0.1:2049"]).unwrap().unwrap();
        assert!(!here.squashes_root() && here.udp && !here.insecure);
        let open = terms(&["--nfs", "0.0.0.0:2049"]).unwrap().unwrap();
        assert!(open.squashes_root());
        let typed = ["--nfs", "0.0.0.0:2049", "--nfs-no-root-squash", "--nfs-no-udp"];
        let more = ["--nfs-allow", "192.0.2.0/24", "--nfs-insecure"];
        let typed = terms(&[&typed[..], &more].concat()).unwrap().unwrap();
        assert!(!typed.squashes_root() && !typed.udp && typed.insecure);
        assert_eq!(typed.allow, ["192.0.2.0/24".parse().unwrap()]);
        for refused in [
            &["--nfs-read-only"][..],
            &["--nfs-allow", "192.0.2.0/24"],
            &["--nfs", "0.0.0.0:2049", "--nfs-root-squash", "--nfs-no-root-squash"],
        ] {
            assert!(terms(refused).is_err(), "{refused:?}");
        }
    }
}
