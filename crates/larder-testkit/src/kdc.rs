//! MIT Kerberos: a realm of its own in the sandbox of a server.

use crate::sandbox::{Sandbox, StartError, failed, listens};
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The port on which the KDC listens.
const PORT: u16 = 88;
/// The realm.
pub(crate) const REALM: &str = "LARDER.TEST";

/// How the realm is set up.
#[derive(Clone, Copy, Debug)]
pub struct KdcOptions {
    /// Longest life of a ticket for the server, in seconds.
    pub ticket_life_s: u32,
    /// How many seconds the clock of the KDC is ahead.
    pub clock_ahead_s: i32,
    /// Whether users must prove that they know their password before they get a ticket
    /// (preauthentication).
    pub asks_for_proof: bool,
}

impl Default for KdcOptions {
    /// Tickets for a day from a KDC whose clock is right.
    fn default() -> KdcOptions {
        KdcOptions { ticket_life_s: 86_400, clock_ahead_s: 0, asks_for_proof: true }
    }
}

/// A running KDC. It ends with its sandbox.
#[derive(Debug)]
pub(crate) struct Kdc {
    host: Ipv4Addr,
    place: PathBuf,
    clock_ahead_s: i32,
}

impl Kdc {
    /// Makes a realm with one user and the service `cifs/HOST`, and starts its KDC.
    pub(crate) fn start(
        sandbox: &mut Sandbox,
        place: PathBuf,
        host: Ipv4Addr,
        (user, password): (&str, &str),
        options: &KdcOptions,
    ) -> Result<Kdc, StartError> {
        for program in ["krb5kdc", "kdb5_util", "kadmin.local", "kinit"] {
            let found = sandbox.run(&format!("command -v {program} >/dev/null"));
            found.map_err(|_| StartError::NotInstalled { program })?;
        }
        let mut kdc = Kdc { host, place, clock_ahead_s: options.clock_ahead_s };
        let written = std::fs::create_dir_all(&kdc.place)
            .and_then(|()| std::fs::write(kdc.krb5_conf(), krb5_conf(host)))
            .and_then(|()| std::fs::write(kdc.place.join("kdc.conf"), kdc_conf(&kdc.place)));
        written.map_err(|cause| failed("configuration of the KDC", cause))?;
        let (place, life_s) = (kdc.place.display(), options.ticket_life_s);
        let proof = if options.asks_for_proof { '+' } else { '-' };
        let keytab = keytab(&kdc.place);
        let keytab = keytab.display();
        sandbox.run(&format!(
            "export KRB5_CONFIG={place}/krb5.conf KRB5_KDC_PROFILE={place}/kdc.conf"
        ))?;
        sandbox.run(&format!("kdb5_util create -s -r {REALM} -P master >{place}/out 2>&1"))?;
        for query in [
            format!("addprinc -pw \"{password}\" {proof}requires_preauth {user}"),
            format!("addprinc -randkey -maxlife {life_s}sec cifs/{host}"),
            format!("ktadd -k {keytab} cifs/{host}"),
        ] {
            sandbox.run(&format!("kadmin.local -r {REALM} -q '{query}' >>{place}/out 2>&1"))?;
        }
        kdc.boot(sandbox)?;
        Ok(kdc)
    }

    /// Starts the KDC, for the first time or after [`kill`](Self::kill), and waits until it
    /// answers.
    pub(crate) fn boot(&mut self, sandbox: &mut Sandbox) -> Result<(), StartError> {
        let (place, clock) = (self.place.display(), clock(self.clock_ahead_s)?);
        sandbox.run(&format!("{clock} krb5kdc -n -r {REALM} >>{place}/out 2>&1 & kdc=$!"))?;
        let (address, log) = (SocketAddr::new(self.host.into(), PORT), self.place.join("out"));
        sandbox.wait_for("krb5kdc", "kdc", &[&log], || listens(address))
    }

    pub(crate) fn kill(sandbox: &mut Sandbox) -> Result<(), StartError> {
        sandbox.run("{ kill -9 $kdc; wait $kdc; } 2>/dev/null; true")
    }

    /// Stops the KDC from answering.
    pub(crate) fn freeze(sandbox: &mut Sandbox) -> Result<(), StartError> {
        sandbox.run(
            "kill -STOP $kdc; until grep -q '^State:.T' /proc/$kdc/status; do sleep 0.01; done",
        )
    }

    /// Gives the service a new key, which its keytab does not contain.
    pub(crate) fn rekey(&self, sandbox: &mut Sandbox) -> Result<(), StartError> {
        let (place, host) = (self.place.display(), self.host);
        let query = format!("cpw -randkey cifs/{host}");
        sandbox.run(&format!("kadmin.local -r {REALM} -q '{query}' >>{place}/out 2>&1"))
    }

    /// The krb5.conf(5) for clients.
    pub(crate) fn krb5_conf(&self) -> PathBuf {
        self.place.join("krb5.conf")
    }

    /// Has kinit(1) get a ticket-granting ticket. Returns the path of the ticket cache, whose
    /// contents are replaced.
    pub(crate) fn kinit(
        &self,
        (user, password): (&str, &str),
        life_s: u32,
    ) -> Result<PathBuf, StartError> {
        let tickets = self.place.join("tickets");
        let mut child = Command::new("kinit")
            .args(["-l", &format!("{life_s}s"), "-c"])
            .arg(&tickets)
            .arg(format!("{user}@{REALM}"))
            .env("KRB5_CONFIG", self.krb5_conf())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|cause| StartError::Missing { program: "kinit", cause })?;
        let asked = child.stdin.take().map(|mut stdin| writeln!(stdin, "{password}"));
        asked.transpose().map_err(|cause| failed("kinit", cause))?;
        let output = child.wait_with_output().map_err(|cause| failed("kinit", cause))?;
        match output.status.success() {
            true => Ok(tickets),
            false => Err(failed("kinit", String::from_utf8_lossy(&output.stderr))),
        }
    }

    /// Has kvno(1) add a ticket for the service to the ticket cache.
    pub(crate) fn kvno(&self) -> Result<(), StartError> {
        let output = Command::new("kvno")
            .arg("-c")
            .arg(self.place.join("tickets"))
            .arg(format!("cifs/{}@{REALM}", self.host))
            .env("KRB5_CONFIG", self.krb5_conf())
            .output()
            .map_err(|cause| StartError::Missing { program: "kvno", cause })?;
        match output.status.success() {
            true => Ok(()),
            false => Err(failed("kvno", String::from_utf8_lossy(&output.stderr))),
        }
    }
}

/// The keytab with the service's key.
pub(crate) fn keytab(place: &Path) -> PathBuf {
    place.join("keytab")
}

/// A command prefix that makes a program see the clock this many seconds ahead.
pub(crate) fn clock(ahead_s: i32) -> Result<String, StartError> {
    if ahead_s == 0 {
        return Ok(String::new());
    }
    let libraries = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    let mut library = libraries.map(|entry| entry.path().join("faketime/libfaketimeMT.so.1"));
    let library = library.find(|path| path.exists());
    let library = library.ok_or(StartError::NotInstalled { program: "libfaketime" })?;
    Ok(format!("LD_PRELOAD={} FAKETIME={ahead_s:+}s", library.display()))
}

fn krb5_conf(host: Ipv4Addr) -> String {
    format!(
        "[libdefaults]\n default_realm = {REALM}\n dns_lookup_kdc = false\n rdns = false\n\
         [realms]\n {REALM} = {{\n  kdc = {host}:{PORT}\n }}\n"
    )
}

fn kdc_conf(place: &Path) -> String {
    let place = place.display();
    // MIT's KDC adds a PAC from 1.20 on; outside of a domain, Samba refuses tickets with one.
    // Recording logins would make each of them wait for the disk.
    format!(
        "[kdcdefaults]\n kdc_listen = {PORT}\n kdc_tcp_listen = {PORT}\n\
         [realms]\n {REALM} = {{\n  database_name = {place}/principal\n  \
         key_stash_file = {place}/stash\n  max_life = 1d\n  disable_pac = true\n }}\n\
         [dbmodules]\n {REALM} = {{\n  disable_last_success = true\n  disable_lockout = true\n }}\n\
         [logging]\n kdc = FILE:{place}/log\n"
    )
}
