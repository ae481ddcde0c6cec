//! A volume beyond its machine: its metadata server speaks TLS, and a mount believes it by `ca=`.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use larder_io::secret;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tempfile::TempDir;

use crate::harness::{Mount, eventually, larder, pattern, scratch, succeed};
use crate::server::Server;
use crate::several_disks::refusal;

/// The certificate is for this address.
const NAMED: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// The server can be reached here, too.
const UNNAMED: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
const PORT: u16 = 2050;

/// A network namespace with addresses that are not those of loopback, until it is dropped.
struct Network {
    keeper: Child,
}

impl Network {
    fn new() -> Network {
        let script = format!(
            "ip link set lo up && ip address add {NAMED}/32 dev lo && \
             ip address add {UNNAMED}/32 dev lo && echo made && exec cat"
        );
        let mut unshare = Command::new("unshare");
        unshare.args(["--net", "sh", "-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut keeper = unshare.spawn().unwrap();
        let mut said = String::new();
        BufReader::new(keeper.stdout.take().unwrap()).read_line(&mut said).unwrap();
        let network = Network { keeper };
        assert_eq!(said, "made\n");
        network
    }

    fn file(&self, name: &str) -> String {
        format!("/proc/{}/{name}", self.keeper.id())
    }

    /// The command, run inside.
    fn running(&self, command: &Command) -> Command {
        let mut inside = Command::new("nsenter");
        inside.arg(format!("--net={}", self.file("ns/net")));
        inside.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => inside.env(name, value),
                None => inside.env_remove(name),
            };
        }
        inside
    }

    /// Whether a process inside listens at this port.
    fn listens(&self, port: u16) -> bool {
        let sockets = fs::read_to_string(self.file("net/tcp")).unwrap();
        // 0A is LISTEN.
        sockets.contains(&format!(":{port:04X} 00000000:0000 0A "))
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        drop(self.keeper.kill());
        drop(self.keeper.wait());
    }
}

/// Makes an authority, and below it a certificate for [`NAMED`] with its key.
fn certify(dir: &Path) -> PathBuf {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let authority = dir.join("authority.pem");
    fs::write(&authority, params.self_signed(&key).unwrap().pem()).unwrap();
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec![NAMED.to_string()]).unwrap();
    let certificate = params.signed_by(&key, &issuer).unwrap();
    fs::write(dir.join("certificate.pem"), certificate.pem()).unwrap();
    secret::write_new(&dir.join("certificate-key.pem"), &key.serialize_pem()).unwrap();
    authority
}

/// A served volume, until it is dropped.
struct Serving {
    dir: TempDir,
    network: Network,
    process: Child,
    authority: PathBuf,
}

impl Serving {
    fn begin(listen: Ipv4Addr, more: &[&str]) -> Serving {
        let (dir, network) = (scratch("larder-tls-"), Network::new());
        let at = |name: &str| dir.path().join(name);
        let authority = certify(dir.path());
        let mut serve = larder();
        serve.env("LARDER_RUNTIME_DIR", at("run")).arg("serve").arg(at("volume"));
        serve.args(["--size", "1G", "--listen", &format!("{listen}:{PORT}")]).args(more);
        serve.arg("--cert").arg(at("certificate.pem"));
        serve.arg("--cert-key").arg(at("certificate-key.pem"));
        let process = network.running(&serve).stdin(Stdio::null()).spawn().unwrap();
        let mut serving = Serving { dir, network, process, authority };
        eventually("the server listens", || {
            let ended = serving.process.try_wait().unwrap();
            assert!(ended.is_none(), "the server has ended: {ended:?}");
            serving.network.listens(PORT)
        });
        serving
    }

    /// A mount by one of the addresses, not made yet: its command is to run in the network.
    fn mount(&self, address: Ipv4Addr, authority: Option<&Path>) -> Mount {
        let authority = authority.map(|authority| format!("ca={}", authority.display()));
        let options: Vec<&str> = authority.as_deref().into_iter().collect();
        let mut mount = Mount::unmounted(&Server::standby(&[]), &options);
        mount.set_url(format!("larder://{address}:{PORT}/"));
        mount
    }

    fn mounted(&self) -> Mount {
        let mut mount = self.mount(NAMED, Some(&self.authority));
        succeed(&mut self.network.running(&mount.command()));
        mount.mounted();
        mount
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// A mount that trusts the authority of the server's certificate works, and so does another one
/// with what the first one has written. One that trusts another authority, that expects another
/// name, or that was not told to use TLS, is refused in one line, and leaves nothing behind.
#[test]
fn a_volume_beyond_its_machine_is_mounted_by_those_who_can_prove_it_only() {
    let serving = Serving::begin(Ipv4Addr::UNSPECIFIED, &[]);
    let other = serving.dir.path().join("other");
    fs::create_dir(&other).unwrap();
    let other = certify(&other);
    let authority = serving.authority.as_path();
    for (address, authority, words) in [
        (NAMED, Some(other.as_path()), ["check that ca= has", "invalid peer certificate"]),
        (UNNAMED, Some(authority), ["invalid peer certificate", "not valid for name"]),
        (NAMED, None, ["gives no session", "ca=FILE"]),
    ] {
        let mount = serving.mount(address, authority);
        let said = refusal(&mut serving.network.running(&mount.command()));
        assert!(words.iter().all(|word| said.contains(word)), "{words:?}: {said}");
        assert!(said.contains(&format!("{address}:{PORT}")), "{said}");
        assert!(!mount.cache().exists(), "{words:?}");
        assert_eq!(fs::read_dir(mount.path("")).unwrap().count(), 0, "{words:?}");
    }

    let (one, two) = (serving.mounted(), serving.mounted());
    for (name, len) in [("short", 5000), ("long", 5 << 20)] {
        let bytes = pattern(len as u64, len);
        fs::write(one.path(name), &bytes).unwrap();
        assert!(fs::read(two.path(name)).unwrap() == bytes, "{name}");
    }
    fs::rename(two.path("short"), two.path("moved")).unwrap();
    assert_eq!(fs::metadata(one.path("moved")).unwrap().len(), 5000);
}

/// The export in the server's process needs no certificate, whatever the addresses of the servers
/// are; nobody else is believed without one.
#[test]
fn nfs_clients_use_a_volume_whose_mounts_speak_tls() {
    let nfs = format!("{UNNAMED}:12049");
    let serving = Serving::begin(NAMED, &["--nfs", &nfs, "--nfs-no-root-squash"]);
    let direct = serving.mounted();
    let mut by_nfs = serving.mount(NAMED, None);
    by_nfs.set_url(format!("nfs://{nfs}/"));
    succeed(&mut serving.network.running(&by_nfs.command()));
    by_nfs.mounted();
    let bytes = pattern(5, 3 << 20);
    fs::write(by_nfs.path("file"), &bytes).unwrap();
    assert!(fs::read(direct.path("file")).unwrap() == bytes);
    fs::write(direct.path("file"), "by TLS").unwrap();
    assert_eq!(fs::read(by_nfs.path("file")).unwrap(), b"by TLS");
    let unproven = serving.mount(NAMED, None);
    let said = refusal(&mut serving.network.running(&unproven.command()));
    assert!(said.contains("gives no session"), "{said}");
}
