//! Debian's PostgreSQL in a directory of its own, reached by a socket in it.
//!
//! It runs below a shell that is the first process of its namespace: when it reads a line, or
//! our end of its input is closed since the test is over, everything dies at once.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use tempfile::TempDir;

/// PostgreSQL refuses to run as root.
const AS_NOBODY: &str = "setpriv --reuid 65534 --regid 65534 --clear-groups";
const NOBODY: u32 = 65_534;

/// A PostgreSQL server. It is killed when this value is dropped. All methods panic if they fail:
/// this is for tests.
#[derive(Debug)]
pub struct PostgresServer {
    dir: TempDir,
    shell: Option<Child>,
    /// What the shell does after the server was killed.
    end: &'static str,
    /// Where it listens beside its socket, under TLS alone.
    address: Option<Ipv4Addr>,
}

impl PostgresServer {
    /// The superuser of the databases.
    pub const USER: &str = "larder";

    /// Starts a new server. `end` is what its shell does after the server was killed.
    ///
    /// # Panics
    /// If it cannot be started: it needs root, and the package `postgresql`.
    pub fn start(end: &'static str) -> PostgresServer {
        let mut server = PostgresServer::make(end);
        server.begin("on");
        server
    }

    /// The same; the server also listens at [`Self::address`], where it shows this certificate,
    /// with this key, both in PEM, and speaks TLS only.
    ///
    /// # Panics
    /// As [`start`](Self::start)
    pub fn start_secure(end: &'static str, certificate: &str, key: &str) -> PostgresServer {
        let mut server = PostgresServer::make(end);
        let of_process = std::process::id().to_be_bytes();
        // No other process listens there.
        server.address = Some(Ipv4Addr::new(127, 64 | of_process[1], of_process[2], of_process[3]));
        for (name, text) in [("server.pem", certificate), ("server.key", key)] {
            let path = server.dir.path().join(name);
            std::fs::write(&path, text).expect("it is ours");
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).expect("it is ours");
            std::os::unix::fs::chown(&path, Some(NOBODY), Some(NOBODY)).expect("we are root");
        }
        let rules = server.dir.path().join("data/pg_hba.conf");
        let mut rules = OpenOptions::new().append(true).open(rules).expect("initdb made it");
        writeln!(rules, "hostssl all all 127.0.0.0/8 trust").expect("it is written");
        server.begin("on");
        server
    }

    /// Where it listens under TLS.
    ///
    /// # Panics
    /// If it was not [started](Self::start_secure) so.
    pub fn address(&self) -> Ipv4Addr {
        self.address.expect("it speaks TLS")
    }

    fn make(end: &'static str) -> PostgresServer {
        let dir = tempfile::tempdir().expect("a directory");
        let open = PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(dir.path(), open).expect("it is ours");
        let server = PostgresServer { dir, shell: None, end, address: None };
        let script = format!(
            "{AS_NOBODY} {} -D data -U {} -A trust --no-sync --no-locale -E UTF8 >/dev/null",
            program("initdb").display(),
            PostgresServer::USER,
        );
        let mut making = Command::new("sh");
        making.args(["-c", &script]).current_dir(server.dir.path());
        assert!(making.status().expect("a shell").success(), "initdb: is the test run by root?");
        server
    }

    /// Starts the server again after a kill, with this value for the setting `fsync`.
    ///
    /// # Panics
    /// If it does not start.
    pub fn begin(&mut self, fsync: &str) {
        // A killed server leaves its process id file; the id may be another process's now.
        let _ = std::fs::remove_file(self.dir.path().join("data/postmaster.pid"));
        let listening = match self.address {
            None => "-c listen_addresses=".to_owned(),
            Some(address) => format!(
                "-c listen_addresses={address} -c ssl=on -c ssl_cert_file=$PWD/server.pem \
                 -c ssl_key_file=$PWD/server.key"
            ),
        };
        let script = format!(
            "{AS_NOBODY} {} -w -s -D data -l log start -o \"{listening} -c fsync={fsync} \
             -c unix_socket_directories=$PWD -c shared_buffers=16MB\" && echo ready; \
             read _; kill -9 -1; {}",
            program("pg_ctl").display(),
            self.end
        );
        let mut shell = Command::new("unshare");
        shell.args(["--pid", "--fork", "--kill-child", "sh", "-c", &script]);
        shell.current_dir(self.dir.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut shell = shell.spawn().expect("unshare(1)");
        let mut said = String::new();
        let answers = shell.stdout.take().expect("it is piped");
        BufReader::new(answers).read_line(&mut said).expect("a shell");
        let log = || std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
        assert_eq!(said, "ready\n", "{}", log());
        self.shell = Some(shell);
    }

    /// Kills all processes of the server.
    ///
    /// # Panics
    /// If it does not run.
    pub fn kill(&mut self) {
        let mut shell = self.shell.take().expect("it runs");
        // Other processes may hold our end of the shell's input open, so the shell is told to exit.
        let input = shell.stdin.as_mut().expect("it is piped");
        input.write_all(b"\n").expect("it reads");
        shell.wait().expect("it is our child");
    }

    /// The connection string of a database, in the syntax of libpq.
    pub fn words(&self, database: &str) -> String {
        let host = self.dir.path().display();
        format!("host={host} user={} dbname={database}", PostgresServer::USER)
    }

    /// Creates a database that no other caller has.
    ///
    /// # Panics
    /// If it cannot be created.
    pub fn database(&self) -> String {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("d{}", NEXT.fetch_add(1, Ordering::Relaxed));
        self.sql("postgres", &format!("CREATE DATABASE {name}"));
        name
    }

    /// Executes a statement and returns its output without headings.
    ///
    /// # Panics
    /// If it is refused.
    pub fn sql(&self, database: &str, text: &str) -> String {
        let mut psql = Command::new(program("psql"));
        psql.arg("-h").arg(self.dir.path()).args(["-U", PostgresServer::USER]);
        let done = psql.args(["-qAtc", text, database]).output().expect("psql(1)");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8_lossy(&done.stdout).trim().to_owned()
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        if self.shell.is_some() {
            self.kill();
        }
    }
}

/// Debian installs the programs outside of PATH, by version.
fn program(name: &str) -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten();
    let mut found: Vec<_> =
        versions.flatten().map(|one| one.path().join("bin").join(name)).collect();
    found.retain(|path| path.exists());
    found.sort();
    found.pop().unwrap_or_else(|| Path::new(name).to_owned())
}
