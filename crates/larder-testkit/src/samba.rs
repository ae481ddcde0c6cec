//! Samba: SMB 2 and 3, and `smbclient` as another user of the same share.

use crate::kdc::{self, Kdc, KdcOptions};
use crate::sandbox::{Sandbox, StartError, failed, listens};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The port on which Samba listens.
const PORT: u16 = 445;

/// How the server is set up.
#[derive(Clone, Copy, Debug)]
pub struct SambaOptions {
    /// Whether users without an account may use the share.
    pub guest: bool,
    /// Whether messages must be signed.
    pub signing: bool,
    /// Whether messages must be encrypted.
    pub encryption: bool,
    /// The lowest dialect, as smb.conf spells it: `SMB2_10`, `SMB3_11`, `NT1`.
    pub protocol_min: &'static str,
    /// The highest dialect.
    pub protocol_max: &'static str,
    /// The Kerberos realm that the server and its user belong to, if any.
    pub kerberos: Option<KdcOptions>,
    /// How many seconds the server's clock is ahead.
    pub clock_ahead_s: i32,
    /// How much it logs, from 0 to 10.
    pub log_level: u8,
    /// Additional lines for the share's section of smb.conf.
    pub share_lines: &'static str,
}

impl Default for SambaOptions {
    /// One user; every dialect from 2.1 on; signing and encryption as the client asks.
    fn default() -> SambaOptions {
        SambaOptions {
            guest: false,
            signing: false,
            encryption: false,
            protocol_min: "SMB2_10",
            protocol_max: "SMB3_11",
            kerberos: None,
            clock_ahead_s: 0,
            log_level: 1,
            share_lines: "",
        }
    }
}

/// A running Samba that shares one directory. It is killed when this value is dropped.
#[derive(Debug)]
pub struct Samba {
    sandbox: Sandbox,
    host: Ipv4Addr,
    /// Configuration, databases and logs.
    state: PathBuf,
    kdc: Option<Kdc>,
    clock_ahead_s: i32,
}

impl Samba {
    /// The name of the share.
    pub const SHARE: &str = "share";
    /// The only user, whose rights on the server are those of root.
    pub const USER: &str = "root";
    /// That user's password.
    pub const PASSWORD: &str = "larder, only for tests";
    /// The Kerberos realm, if there is one.
    pub const REALM: &str = kdc::REALM;

    /// Starts a server that shares `export`, and waits until it answers.
    ///
    /// # Errors
    /// [`StartError`]; with the last lines of the server's log if it did not start.
    pub fn start(export: &Path, options: &SambaOptions) -> Result<Samba, StartError> {
        let mut sandbox = Sandbox::start(true)?;
        let host = sandbox.link()?;
        let state = sandbox.state_directory("samba")?;
        for folder in FOLDERS {
            let made = std::fs::create_dir_all(state.join(folder));
            made.map_err(|cause| failed("state directory", cause))?;
        }
        std::fs::write(state.join("conf"), configuration(&state, export, options))
            .map_err(|cause| failed("configuration", cause))?;
        for program in ["smbd", "smbpasswd", "smbclient"] {
            let found = sandbox.run(&format!("command -v {program} >/dev/null"));
            found.map_err(|_| StartError::NotInstalled { program })?;
        }
        let login = (Samba::USER, Samba::PASSWORD);
        let kdc = options
            .kerberos
            .map(|kdc| Kdc::start(&mut sandbox, state.join(KDC_FOLDER), host, login, &kdc));
        let kdc = kdc.transpose()?;
        let mut samba = Samba { sandbox, host, state, kdc, clock_ahead_s: options.clock_ahead_s };
        samba.set_password(Samba::PASSWORD)?;
        samba.boot()?;
        Ok(samba)
    }

    /// Gives [`Samba::USER`] another password.
    ///
    /// # Errors
    /// [`StartError::Failed`] if that is refused.
    pub fn set_password(&mut self, password: &str) -> Result<(), StartError> {
        let (user, place) = (Samba::USER, self.state.display());
        self.sandbox.run(&format!(
            "printf '%s\\n%s\\n' '{password}' '{password}' | \
             smbpasswd -c {place}/conf -s -a {user} >/dev/null 2>&1"
        ))
    }

    /// The first two numbers of the installed version.
    ///
    /// # Errors
    /// [`StartError`] if Samba is not installed, or its answer cannot be parsed.
    pub fn version() -> Result<(u32, u32), StartError> {
        let output = Command::new("smbd").arg("--version").output();
        let output = output.map_err(|cause| StartError::Missing { program: "smbd", cause })?;
        let said = String::from_utf8_lossy(&output.stdout);
        let numbers = said.split(|one: char| !one.is_ascii_digit()).filter(|one| !one.is_empty());
        let numbers: Vec<_> = numbers.map_while(|one| one.parse().ok()).take(2).collect();
        match numbers[..] {
            [major, minor] => Ok((major, minor)),
            _ => Err(failed("smbd --version", &said)),
        }
    }

    /// The address on which it listens.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::new(self.host(), PORT)
    }

    /// The server's IP address.
    pub fn host(&self) -> IpAddr {
        self.host.into()
    }

    /// Starts the server after [`kill`](Self::kill) and waits until it answers.
    ///
    /// # Errors
    /// [`StartError::Failed`] with the last lines of the server's log.
    pub fn boot(&mut self) -> Result<(), StartError> {
        let (state, clock) = (self.state.display(), kdc::clock(self.clock_ahead_s)?);
        self.sandbox.run(&format!(
            "{clock} smbd -F --no-process-group -s {state}/conf >{state}/out 2>&1 & child=$!"
        ))?;
        let (address, names) = (self.address(), self.state.join("lock/names.tdb"));
        let logs = ["out", "log"].map(|log| self.state.join(log));
        self.sandbox.wait_for("smbd", "child", &[&logs[0], &logs[1]], || answers(address, &names))
    }

    /// How many connections to the server are established, according to the kernel.
    ///
    /// # Panics
    /// If `/proc` cannot be read.
    pub fn connections(&self) -> usize {
        // In every line, the second word is the local address and the fourth is the state
        // (proc(5)).
        let (port, established) = (format!(":{PORT:04X}"), "01");
        let tables = ["tcp", "tcp6"].map(|table| {
            let path = format!("/proc/{}/net/{table}", self.sandbox.process());
            std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
        });
        let sockets = tables.iter().flat_map(|table| table.lines().skip(1));
        let ours = sockets.map(|line| line.split_whitespace().collect::<Vec<_>>());
        ours.filter(|words| words[1].ends_with(&port) && words[3] == established).count()
    }

    /// What is open at the server, for the report of a test that failed.
    pub fn opens(&self) -> String {
        let process = self.sandbox.process();
        let output = Command::new("nsenter")
            .arg(format!("--pid=/proc/{process}/ns/pid_for_children"))
            .arg(format!("--mount=/proc/{process}/ns/mnt"))
            .args(["smbstatus", "--locks", "--configfile"])
            .arg(self.state.join("conf"))
            .output();
        output.map_or_else(
            |error| format!("no smbstatus: {error}"),
            |output| String::from_utf8_lossy(&output.stdout).into_owned(),
        )
    }

    /// What the server has logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.state.join("log")).unwrap_or_default()
    }

    /// How many requests the server refused because their session had expired. The log level must
    /// be at least 3.
    pub fn expired(&self) -> usize {
        self.log().matches("NT_STATUS_NETWORK_SESSION_EXPIRED").count()
    }

    /// The krb5.conf(5) of the realm, for clients.
    ///
    /// # Panics
    /// If there is no realm, like all methods that need one.
    pub fn krb5_conf(&self) -> PathBuf {
        self.kdc().krb5_conf()
    }

    /// Has kinit(1) get a ticket for the user, valid for this many seconds. Returns the path of the
    /// ticket cache, whose contents are replaced.
    ///
    /// # Errors
    /// [`StartError::Failed`] with the error message of kinit.
    pub fn kinit(&self, life_s: u32) -> Result<PathBuf, StartError> {
        self.kdc().kinit((Samba::USER, Samba::PASSWORD), life_s)
    }

    /// Has kvno(1) add a ticket for this server to the ticket cache of [`kinit`](Self::kinit).
    ///
    /// # Errors
    /// [`StartError::Failed`] with the error message of kvno.
    pub fn kvno(&self) -> Result<(), StartError> {
        self.kdc().kvno()
    }

    /// Has the KDC give the server a new key, which the server does not learn.
    ///
    /// # Errors
    /// [`StartError::Failed`] if that is not possible.
    pub fn rekey(&mut self) -> Result<(), StartError> {
        let kdc = self.kdc.as_ref().expect("there is a realm");
        kdc.rekey(&mut self.sandbox)
    }

    /// Kills the KDC.
    ///
    /// # Errors
    /// [`StartError::Failed`] if it does not run.
    pub fn kill_kdc(&mut self) -> Result<(), StartError> {
        Kdc::kill(&mut self.sandbox)
    }

    /// Stops the KDC from answering; it still accepts connections.
    ///
    /// # Errors
    /// [`StartError::Failed`] if it does not run.
    pub fn freeze_kdc(&mut self) -> Result<(), StartError> {
        Kdc::freeze(&mut self.sandbox)
    }

    /// Starts the KDC after [`kill_kdc`](Self::kill_kdc) and waits until it answers.
    ///
    /// # Errors
    /// [`StartError::Failed`] with the last lines of its log.
    pub fn boot_kdc(&mut self) -> Result<(), StartError> {
        let kdc = self.kdc.as_mut().expect("there is a realm");
        kdc.boot(&mut self.sandbox)
    }

    fn kdc(&self) -> &Kdc {
        self.kdc.as_ref().expect("there is a realm")
    }

    /// Kills the server, with the processes that serve its connections, as a crash would.
    ///
    /// # Errors
    /// [`StartError::Failed`] if it does not run.
    pub fn kill(&mut self) -> Result<(), StartError> {
        self.sandbox.run(
            "{ family=$(pgrep -P $child); kill -9 $child $family; wait $child; \
             for one in $family; do while kill -0 $one; do sleep 0.01; done; done; } 2>/dev/null; true",
        )
    }

    /// Has the server end all clients' use of the share: it closes their files, and they must
    /// connect to the share again, over connections that stay open. Waits until that is done.
    ///
    /// # Errors
    /// [`StartError::Failed`] if the server cannot be told to.
    pub fn close_share(&mut self) -> Result<(), StartError> {
        let (conf, share) = (self.state.join("conf"), Samba::SHARE);
        let conf = conf.display();
        // The processes that serve the share get the message through another process, at different
        // times.
        let uses = format!("smbstatus --configfile={conf} --shares 2>/dev/null | grep '^{share} '");
        self.sandbox.run(&format!(
            "uses=$({uses}); smbcontrol --configfile={conf} smbd close-share {share} >/dev/null 2>&1 && \
             while {uses} | grep -qxF \"$uses\"; do sleep 0.01; done"
        ))
    }

    /// Stops all processes of the server, so that it answers nothing while its connections stay
    /// open.
    ///
    /// # Errors
    /// [`StartError::Failed`] if it does not run.
    pub fn freeze(&mut self) -> Result<(), StartError> {
        // A process whose connection has just ended is ending too, or has ended: do not wait for it
        // to stop.
        self.sandbox.run(
            "for one in $child $(pgrep -P $child); do kill -STOP $one; \
             while grep -q '^State:.[^TZX]' /proc/$one/status; do sleep 0.01; done; done 2>/dev/null",
        )
    }

    /// Stops the process that serves the connection that was made last.
    ///
    /// # Errors
    /// [`StartError::Failed`] if the server does not run.
    pub fn freeze_newest(&mut self) -> Result<(), StartError> {
        self.sandbox.run(
            "one=$(pgrep -n -P $child) && kill -STOP $one && \
             while grep -q '^State:.[^T]' /proc/$one/status; do sleep 0.01; done",
        )
    }

    /// Lets the server continue after [`freeze`](Self::freeze) or
    /// [`freeze_newest`](Self::freeze_newest).
    ///
    /// # Errors
    /// [`StartError::Failed`] if it does not run.
    pub fn thaw(&mut self) -> Result<(), StartError> {
        // The parent is continued last: while it is stopped, it does not reap the others.
        self.sandbox.run("kill -CONT $(pgrep -P $child) $child")
    }

    /// Cuts the network between the server and all its clients: messages are lost in both
    /// directions.
    ///
    /// # Errors
    /// [`StartError::Failed`] if the server has no network namespace of its own.
    pub fn cut(&mut self) -> Result<(), StartError> {
        self.sandbox.cut()
    }

    /// Restores the network after [`cut`](Self::cut).
    ///
    /// # Errors
    /// [`StartError::Failed`] if the server has no network namespace of its own.
    pub fn mend(&mut self) -> Result<(), StartError> {
        self.sandbox.mend()
    }

    /// Has `smbclient` execute commands on the share, and returns its output. Blocks.
    ///
    /// # Errors
    /// [`StartError::Failed`] with its output if it fails.
    pub fn client(&self, commands: &str) -> Result<String, StartError> {
        let output = Command::new("smbclient")
            .arg(format!("//{}/{}", self.host, Samba::SHARE))
            .arg("--configfile")
            .arg(self.state.join("conf"))
            .arg("--user")
            .arg(format!("{}%{}", Samba::USER, Samba::PASSWORD))
            .args(["--max-protocol", "SMB3", "--command", commands])
            .output()
            .map_err(|cause| StartError::Missing { program: "smbclient", cause })?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        match output.status.success() {
            true => Ok(said),
            false => Err(failed(format!("smbclient: {commands}"), said)),
        }
    }
}

impl Drop for Samba {
    fn drop(&mut self) {
        self.sandbox.end();
        // If this fails, the directory is left for the system's cleaning of temporary files.
        let _ = std::fs::remove_dir_all(&self.state);
    }
}

/// Whether the server is ready: it listens, and its process that watches directories has registered
/// its name. Until then the server refuses connections to the share with "out of memory".
fn answers(address: SocketAddr, names: &Path) -> io::Result<()> {
    const WATCHES: &[u8] = b"notify-daemon";
    listens(address)?;
    let names = std::fs::read(names)?;
    let known = names.windows(WATCHES.len()).any(|name| name == WATCHES);
    known.then_some(()).ok_or_else(|| io::Error::other("nobody watches directories yet"))
}

/// The subdirectory of the state directory for the realm's files.
const KDC_FOLDER: &str = "kdc";

const FOLDERS: [&str; 6] = ["private", "lock", "state", "cache", "pid", "ncalrpc"];

fn configuration(state: &Path, export: &Path, options: &SambaOptions) -> String {
    let (place, export) = (state.display(), export.display());
    let yes = |it_is| if it_is { "yes" } else { "no" };
    let signing = if options.signing { "mandatory" } else { "auto" };
    let encryption = if options.encryption { "required" } else { "default" };
    let guests = if options.guest { "Bad User" } else { "Never" };
    let kerberos = options.kerberos.map_or_else(String::new, |_| {
        let keytab = kdc::keytab(&state.join(KDC_FOLDER));
        let (realm, keytab) = (Samba::REALM, keytab.display());
        format!(
            " realm = {realm}\n kerberos method = dedicated keytab\n \
             dedicated keytab file = {keytab}\n"
        )
    });
    let SambaOptions { protocol_min, protocol_max, log_level, share_lines, .. } = options;
    // Every login works as root, so that tests need no users of the machine.
    format!(
        "[global]\n server role = standalone server\n disable netbios = yes\n smb ports = {PORT}\n \
         private dir = {place}/private\n lock directory = {place}/lock\n \
         state directory = {place}/state\n cache directory = {place}/cache\n \
         pid directory = {place}/pid\n ncalrpc dir = {place}/ncalrpc\n \
         passdb backend = smbpasswd:{place}/private/passwords\n log file = {place}/log\n \
         log level = {log_level}\n max log size = 0\n load printers = no\n printing = bsd\n \
         printcap name = /dev/null\n disable spoolss = yes\n map to guest = {guests}\n \
         guest account = nobody\n server signing = {signing}\n server smb encrypt = {encryption}\n \
         server min protocol = {protocol_min}\n server max protocol = {protocol_max}\n \
         client min protocol = NT1\n{kerberos}\
         [{}]\n path = {export}\n read only = no\n guest ok = {}\n force user = root\n \
         store dos attributes = yes\n strict sync = yes\n {share_lines}\n",
        Samba::SHARE,
        yes(options.guest),
    )
}
