//! The address of a database, as libpq's users write it, and its password, which is in a file.
//!
//! The words that name the database never contain a password, because every user of the machine
//! sees those.

use std::env;
use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use larder_io::secret;
use thiserror::Error;
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};

use super::line::Trouble;
use super::tls::Tls;

/// How long each address is tried.
const CONNECT_MAX: Duration = Duration::from_secs(5);

/// A database, and the user that connects to it.
#[derive(Clone)]
pub struct Target {
    config: Config,
    /// The file with passwords, if it was named.
    passwords: Option<PathBuf>,
    /// The file with the certificates below which the server's is, if it is spoken to by TLS.
    authorities: Option<PathBuf>,
}

/// Why a text names no database.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum TargetError {
    /// It has a password in it.
    #[error(
        "a password on the command line is seen by everybody on the machine: leave it out, and put \
         it in ~/.pgpass or a file that passfile= or PGPASSFILE names"
    )]
    Password,
    /// It is not understood.
    #[error("{0}: use postgres://USER@HOST/DATABASE or postgres:host=HOST dbname=DATABASE")]
    Unreadable(String),
    /// It would go over the network as it is.
    #[error(
        "{0} is another machine, and what clients are granted would pass the network in the clear: \
         add sslmode=verify-full and sslrootcert=FILE, or use a socket or an address of this machine"
    )]
    Clear(String),
    /// Its server could not prove who it is.
    #[error("sslmode=verify-full: {0}")]
    Unproven(&'static str),
}

impl Target {
    /// Reads `postgres://USER@HOST:PORT/DATABASE?OPTIONS`, or `KEY=VALUE` pairs, as libpq does.
    ///
    /// # Errors
    /// [`TargetError`]; no password is in its text.
    pub fn parse(text: &str) -> Result<Target, TargetError> {
        let (text, Own { passwords, is_verified, authorities }) = without_own(text);
        let parsed: Result<Config, _> = text.parse();
        let mut config = parsed.map_err(|error| {
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            TargetError::Unreadable(cause.unwrap_or_else(|| "it names no database".to_owned()))
        })?;
        if config.get_password().is_some() {
            return Err(TargetError::Password);
        }
        if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
            config.host("/var/run/postgresql");
        }
        match (is_verified, another_machine(&config)) {
            (true, _) => {
                can_be_verified(&config, authorities.is_some())?;
                config.ssl_mode(SslMode::Require);
            }
            (false, Some(other)) => return Err(TargetError::Clear(other)),
            (false, None) if authorities.is_some() => {
                let wanted = "add it: without, no certificate is looked at";
                return Err(TargetError::Unproven(wanted));
            }
            (false, None) => drop(config.ssl_mode(SslMode::Disable)),
        }
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_MAX);
        }
        if config.get_application_name().is_none() {
            config.application_name("larder meta");
        }
        // A copy that follows another server cannot be written.
        config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        Ok(Target { config, passwords, authorities })
    }

    /// The configuration for a connection: the password is read each time, so that it can be
    /// changed.
    pub(super) fn config(&self) -> Result<Config, Trouble> {
        let mut config = self.config.clone();
        let named = self.passwords.clone().or_else(|| env::var_os("PGPASSFILE").map(PathBuf::from));
        let usual = || env::var_os("HOME").map(|home| Path::new(&home).join(".pgpass"));
        let (is_named, path) = (named.is_some(), named.or_else(usual));
        let Some(path) = path else { return Ok(config) };
        match secret::read(&path) {
            Ok(text) => {
                if let Some(password) = self.password(&text) {
                    config.password(password);
                }
                Ok(config)
            }
            Err(error) if error.kind() == ErrorKind::NotFound && !is_named => Ok(config),
            Err(error) => {
                Err(Trouble::Refused(format!("the password file {}: {error}", path.display())))
            }
        }
    }

    /// How to speak TLS to the server, if that is wanted: the file is read each time, so that it
    /// can be changed.
    pub(super) fn tls(&self) -> Result<Option<Tls>, Trouble> {
        let tls = self.authorities.as_deref().map(Tls::new).transpose();
        tls.map_err(|error| Trouble::Refused(format!("sslrootcert: {error}")))
    }

    /// The password in a file for this user: that of the first line
    /// `HOST:PORT:DATABASE:USER:PASSWORD` that matches.
    fn password(&self, text: &str) -> Option<String> {
        let host = match self.config.get_hosts().first() {
            Some(Host::Tcp(host)) => host.clone(),
            // As libpq has it, sockets are this machine's.
            _ => "localhost".to_owned(),
        };
        let port = self.config.get_ports().first().copied().unwrap_or(5432).to_string();
        let user = self.config.get_user().map(str::to_owned).or_else(|| env::var("USER").ok());
        let user = user.unwrap_or_default();
        let database = self.config.get_dbname().unwrap_or(&user);
        let wanted = [&*host, &*port, database, &*user];
        text.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
            let fields = fields(line);
            let (password, asked) = fields.split_last()?;
            let fits = asked.len() == wanted.len()
                && asked.iter().zip(wanted).all(|(field, want)| field == "*" || field == want);
            fits.then(|| password.clone())
        })
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target").field("config", &self.config).finish_non_exhaustive()
    }
}

/// The address of the database, without the user.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let database = self.config.get_dbname().or(self.config.get_user()).unwrap_or("the default");
        write!(f, "database {database} of ")?;
        match self.config.get_hosts().first() {
            Some(Host::Tcp(host)) => f.write_str(host),
            Some(Host::Unix(path)) => write!(f, "{}", path.display()),
            None => f.write_str("its server"),
        }
    }
}

/// A line of a password file: fields between colons, with `\` before colons that are in them.
fn fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        let count = fields.len();
        let last = fields.last_mut().expect("there is one");
        match letter {
            '\\' => last.extend(letters.next()),
            ':' if count < 5 => fields.push(String::new()),
            letter => last.push(letter),
        }
    }
    fields
}

/// What the client library does not know, or not as libpq does.
#[derive(Debug, Default)]
struct Own {
    passwords: Option<PathBuf>,
    /// The server is to prove who it is.
    is_verified: bool,
    authorities: Option<PathBuf>,
}

/// Removes these words.
fn without_own(text: &str) -> (String, Own) {
    let is_url = text.contains("://");
    let (kept, options) = match (is_url, text.split_once('?')) {
        (true, Some((kept, options))) => (format!("{kept}?"), options),
        (true, None) => return (text.to_owned(), Own::default()),
        (false, _) => (String::new(), text),
    };
    let between = if is_url { '&' } else { ' ' };
    let path = |value: &str| {
        let decoded = percent_encoding::percent_decode_str(value).decode_utf8_lossy();
        let path = if is_url { decoded.into_owned() } else { value.to_owned() };
        Some(PathBuf::from(path.trim_matches('\'')))
    };
    let mut own = Own::default();
    let rest: Vec<&str> = options
        .split(between)
        .filter(|option| {
            match option.split_once('=') {
                Some(("passfile", value)) => own.passwords = path(value),
                Some(("sslrootcert", value)) => own.authorities = path(value),
                Some(("sslmode", "verify-full")) => own.is_verified = true,
                _ => return true,
            }
            false
        })
        .collect();
    (format!("{kept}{}", rest.join(&between.to_string())), own)
}

/// Whether the server can be asked to prove that it has the name by which it is known.
fn can_be_verified(config: &Config, has_authorities: bool) -> Result<(), TargetError> {
    if !has_authorities {
        let wanted = "add sslrootcert=FILE, with the certificate that has signed the server's";
        return Err(TargetError::Unproven(wanted));
    }
    let hosts = config.get_hosts();
    if hosts.is_empty() {
        return Err(TargetError::Unproven("add host=NAME, the name in the server's certificate"));
    }
    match hosts.iter().any(|host| matches!(host, Host::Unix(_))) {
        true => Err(TargetError::Unproven("there is no TLS over a socket of this machine")),
        false => Ok(()),
    }
}

/// A host that is not this machine, if there is one among them.
fn another_machine(config: &Config) -> Option<String> {
    let addresses = config.get_hostaddrs();
    if let Some(other) = addresses.iter().find(|address| !address.is_loopback()) {
        return Some(other.to_string());
    }
    if !addresses.is_empty() {
        return None;
    }
    config.get_hosts().iter().find_map(|host| match host {
        Host::Tcp(name) => {
            let address: Option<std::net::IpAddr> = name.parse().ok();
            let is_here = address.map_or(name == "localhost", |address| address.is_loopback());
            (!is_here).then(|| name.clone())
        }
        Host::Unix(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        Target::parse(text).unwrap().config
    }

    #[test]
    fn a_database_is_named_as_libpq_has_it() {
        for text in [
            "postgres://ann@localhost:5433/volumes",
            "postgresql://ann@localhost:5433/volumes?connect_timeout=3",
            "host=localhost port=5433 user=ann dbname=volumes",
            "host=localhost port=5433 passfile=/etc/larder/pass user=ann dbname=volumes",
        ] {
            let config = config(text);
            assert_eq!(config.get_hosts(), [Host::Tcp("localhost".into())], "{text}");
            assert_eq!((config.get_user(), config.get_dbname()), (Some("ann"), Some("volumes")));
            assert_eq!(config.get_ports(), [5433]);
        }
        let socket = [Host::Unix("/var/run/postgresql".into())];
        assert_eq!(config("postgres:///volumes").get_hosts(), socket);
        assert_eq!(config("dbname=volumes").get_hosts(), socket);
    }

    #[test]
    fn what_is_no_database_is_refused_and_no_password_is_shown() {
        for text in [
            "postgres://ann:hush@localhost/volumes",
            "host=localhost password=hush",
            "postgres:///volumes?password=hush",
        ] {
            assert_eq!(Target::parse(text).unwrap_err(), TargetError::Password, "{text}");
        }
        for text in ["host", "hosts=a", "postgres://ann:hush@h:x/", "sslmode=maybe host=localhost"]
        {
            let refused = Target::parse(text).unwrap_err().to_string();
            assert!(refused.contains("use postgres://") && !refused.contains("hush"), "{refused}");
            assert_eq!(refused.lines().count(), 1);
        }
        for text in ["host=db.example", "postgres://192.0.2.1/volumes", "host=localhost,192.0.2.1"]
        {
            let refused = Target::parse(text).unwrap_err();
            assert!(matches!(refused, TargetError::Clear(_)), "{refused}");
        }
        Target::parse("host=db.example hostaddr=127.0.0.1").unwrap();
    }

    #[test]
    fn a_database_on_another_machine_is_to_prove_its_name() {
        for text in [
            "host=db.example sslmode=verify-full sslrootcert=/etc/ca.pem user=ann dbname=volumes",
            "postgres://ann@db.example/volumes?sslmode=verify-full&sslrootcert=%2Fetc%2Fca.pem",
        ] {
            let target = Target::parse(text).unwrap();
            assert_eq!(target.config.get_ssl_mode(), SslMode::Require, "{text}");
            assert_eq!(target.authorities.as_deref(), Some(Path::new("/etc/ca.pem")));
            assert_eq!(target.config.get_dbname(), Some("volumes"));
        }
        // Whatever else is said, as by whoever can add a word, there is TLS.
        let target = Target::parse("host=h sslmode=verify-full sslrootcert=/ca sslmode=disable");
        assert_eq!(target.unwrap().config.get_ssl_mode(), SslMode::Require);
        for text in [
            "host=db.example sslmode=verify-full",
            "hostaddr=192.0.2.1 sslmode=verify-full sslrootcert=/ca",
            "host=/run/postgresql sslmode=verify-full sslrootcert=/ca",
            "host=localhost sslrootcert=/ca",
            "host=localhost sslmode=require sslrootcert=/ca",
        ] {
            let refused = Target::parse(text).unwrap_err();
            assert!(matches!(refused, TargetError::Unproven(_)), "{text}: {refused}");
        }
        for text in ["host=db.example sslmode=require", "host=db.example sslrootcert=/ca"] {
            let refused = Target::parse(text).unwrap_err();
            assert!(matches!(refused, TargetError::Clear(_)), "{text}: {refused}");
        }
        for text in ["host=h sslmode=verify-ca sslrootcert=/ca", "host=h sslcert=/c sslkey=/k"] {
            let refused = Target::parse(text).unwrap_err();
            assert!(matches!(refused, TargetError::Unreadable(_)), "{text}: {refused}");
        }
    }

    #[test]
    fn a_password_is_of_the_first_line_that_fits() {
        let target = Target::parse("host=localhost port=5433 user=ann dbname=volumes").unwrap();
        let password = |text: &str| target.password(text);
        assert_eq!(password("localhost:5433:volumes:ann:hush").as_deref(), Some("hush"));
        let lines = "# of all\n*:*:*:bob:not\n*:5433:*:ann:a\\:b\\\\:c\n*:*:*:*:late\n";
        assert_eq!(password(lines).as_deref(), Some("a:b\\:c"));
        assert_eq!(password("localhost:5432:volumes:ann:hush\n\nx"), None);
    }

    #[test]
    fn a_password_file_that_others_may_read_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pass");
        std::fs::write(&path, "*:*:*:*:hush\n").unwrap();
        let text = format!("host=localhost user=ann passfile={}", path.display());
        let target = Target::parse(&text).unwrap();
        let chmod = |mode| {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        chmod(0o644);
        let refused = target.config().unwrap_err().to_string();
        assert!(refused.contains("chmod 600") && !refused.contains("hush"), "{refused}");
        chmod(0o600);
        assert_eq!(target.config().unwrap().get_password(), Some(&b"hush"[..]));
        assert!(!format!("{target} {target:?}").contains("hush"));
        std::fs::remove_file(&path).unwrap();
        assert!(target.config().is_err(), "it was named");
    }
}
