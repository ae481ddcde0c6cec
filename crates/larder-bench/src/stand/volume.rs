//! A volume of our own servers: a metadata server and disks, each a process, as on as many
//! machines.

use std::fs;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use anyhow::{Context, Result};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

use super::served::spawn_at;
use crate::link::netns::Netns;
use crate::process::{self, START_MAX, log_to, still_runs, succeed, succeed_within};

/// Size of each disk. Its store has holes where nothing was written.
const DISK_SIZE: &str = "16G";

/// Longest wait for a disk's status.
const COMMAND_MAX: Duration = Duration::from_secs(30);
/// What is counted of its disks, as records have it.
const REVOCATIONS: &str = "disk_revocations";
const REFUSALS: &str = "disk_refusals";

/// What a volume consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts {
    /// How requests to its disks are protected: `off`, `secure` or `private`.
    pub setup: &'static str,
    /// Disks.
    pub disks: u16,
    /// As fast as a disk reads and writes, as `larder disk --rate` takes it; `None` is as fast as
    /// it can.
    pub rate: Option<&'static str>,
}

/// How a volume is mounted.
#[derive(Debug)]
pub(super) struct Endpoint {
    address: SocketAddr,
    /// The certificate that a mount must trust, where the metadata server speaks TLS.
    ca: Option<PathBuf>,
}

impl Endpoint {
    /// That of the metadata server at `address`.
    pub(super) fn new(address: SocketAddr, tls: Option<Tls>) -> Endpoint {
        Endpoint { address, ca: tls.map(|tls| tls.authority) }
    }

    /// What is mounted.
    pub(super) fn source(&self) -> String {
        format!("larder://{}/", self.address)
    }

    /// Mount options that it takes.
    pub(super) fn options(&self) -> Vec<String> {
        self.ca.iter().map(|ca| format!("ca={}", ca.display())).collect()
    }
}

/// A running volume.
#[derive(Debug)]
pub(super) struct Volume {
    /// How it is mounted.
    pub(super) endpoint: Endpoint,
    meta: Child,
    disks: Vec<Child>,
    /// Where the bytes are.
    pub(super) dir: PathBuf,
}

impl Volume {
    /// Makes a volume in `dir`, which must not exist, and serves it: the metadata server at
    /// `address`, the disks at the ports behind that.
    ///
    /// # Errors
    /// If a part cannot be made or does not come up.
    pub(super) fn start(
        larder: &Path,
        dir: &Path,
        parts: Parts,
        address: SocketAddr,
        netns: Option<&Netns>,
    ) -> Result<Volume> {
        fs::create_dir_all(dir)?;
        let engine = format!("embedded:{}", dir.join("meta").display());
        let mut create = Command::new(larder);
        create.args(["volume", "create", "--engine", &engine, "--setup", parts.setup]);
        succeed(&mut create)?;
        let tls = (!address.ip().is_loopback()).then(|| certify(dir, address.ip())).transpose()?;
        let mut commands = Vec::new();
        for number in 1..=parts.disks {
            let at = SocketAddr::new(address.ip(), address.port() + number).to_string();
            let file = |what: &str| dir.join(format!("{what}{number}"));
            let (key, store) = (file("key"), file("disk"));
            let mut enrol = Command::new(larder);
            enrol.args(["disk", "enrol", "--engine", &engine, "--address", &at]);
            succeed(enrol.args(["--size", DISK_SIZE]).arg(&key))?;
            let mut disk = Command::new(larder);
            disk.args(["disk", "--size", DISK_SIZE, "--listen", &at]);
            disk.arg("--store").arg(store).arg("--key").arg(key);
            disk.args(parts.rate.map(|rate| ["--rate", rate]).into_iter().flatten());
            commands.push((disk, file("disk-log")));
        }
        let mut meta = Command::new(larder);
        meta.args(["meta", "--engine", &engine, "--listen", &address.to_string()]);
        if let Some(Tls { certificate, key, .. }) = &tls {
            meta.arg("--cert").arg(certificate).arg("--cert-key").arg(key);
        }
        let log = dir.join("meta-log");
        let mut volume = Volume {
            endpoint: Endpoint::new(address, tls),
            meta: spawn(&mut meta, &log, netns)?,
            disks: Vec::new(),
            dir: dir.to_path_buf(),
        };
        for (mut disk, log) in commands {
            volume.disks.push(spawn(&mut disk, &log, netns)?);
        }
        process::wait_for("the metadata server's start", START_MAX, || {
            still_runs(&mut volume.meta, "larder meta", &log)?;
            Ok(TcpStream::connect_timeout(&address, START_MAX).ok())
        })?;
        Ok(volume)
    }

    /// The first port behind those of its servers.
    pub(super) fn port_behind(&self) -> u16 {
        self.endpoint.address.port() + 1 + u16::try_from(self.disks.len()).unwrap_or(u16::MAX)
    }

    /// Where its disks listen.
    pub(super) fn disk_addresses(&self) -> Vec<SocketAddr> {
        let first = self.endpoint.address.port() + 1;
        let ports = first..self.port_behind();
        ports.map(|port| SocketAddr::new(self.endpoint.address.ip(), port)).collect()
    }

    /// Its processes: the leaders of their groups, with the labels of their costs.
    pub(super) fn processes(&self) -> Vec<(&'static str, u32)> {
        let disks = self.disks.iter().map(|disk| ("disks_cpu_s", disk.id()));
        std::iter::once(("metadata_cpu_s", self.meta.id())).chain(disks).collect()
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        // First the one that calls the others.
        process::end(&mut self.meta);
        self.disks.iter_mut().for_each(process::end);
    }
}

/// The part that we read of what `larder status --json` prints of a disk.
#[derive(serde::Deserialize)]
struct DiskStatus {
    revocations: u64,
    status: DiskCounts,
}

#[derive(serde::Deserialize)]
struct DiskCounts {
    refused: Vec<RefusalCount>,
}

#[derive(serde::Deserialize)]
struct RefusalCount {
    count: u64,
}

/// How often the metadata server has told a disk to revoke capabilities so far, and how often the
/// disk has refused a request; nothing if it cannot be asked.
pub(super) fn told(larder: &Path, disk: SocketAddr) -> Vec<(&'static str, f64)> {
    let mut command = Command::new(larder);
    command.args(["status", "--json", &disk.to_string()]);
    let told = succeed_within(&mut command, COMMAND_MAX).ok();
    let status: Option<DiskStatus> = told.and_then(|told| serde_json::from_str(&told).ok());
    let Some(DiskStatus { revocations, status }) = status else { return Vec::new() };
    let refusals: u64 = status.refused.iter().map(|one| one.count).sum();
    vec![(REVOCATIONS, revocations as f64), (REFUSALS, refusals as f64)]
}

/// Starts a part, which leads a group: Ctrl-C ends the run, and the run ends its servers.
pub(super) fn spawn(command: &mut Command, log: &Path, netns: Option<&Netns>) -> Result<Child> {
    log_to(command, log)?;
    spawn_at(command.process_group(0), netns)
}

/// A certificate, its key, and the authority that vouches for it, as files.
pub(super) struct Tls {
    pub(super) authority: PathBuf,
    pub(super) certificate: PathBuf,
    pub(super) key: PathBuf,
}

/// Makes a certificate for an address.
pub(super) fn certify(dir: &Path, address: IpAddr) -> Result<Tls> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate()?;
    let authority = params.self_signed(&key)?.pem();
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate()?;
    let server = CertificateParams::new(vec![address.to_string()])?.signed_by(&key, &issuer)?;
    let tls = Tls {
        authority: dir.join("authority.pem"),
        certificate: dir.join("certificate.pem"),
        key: dir.join("certificate-key.pem"),
    };
    fs::write(&tls.authority, authority)?;
    fs::write(&tls.certificate, server.pem())?;
    larder_io::secret::write_new(&tls.key, &key.serialize_pem())
        .with_context(|| tls.key.display().to_string())?;
    Ok(tls)
}
