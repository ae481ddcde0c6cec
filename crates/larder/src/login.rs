//! The login at an SMB server: from the source, the options, a file, the environment, or a prompt.
//!
//! The password comes from the first of: the credentials file, `PASSWD`, the file that
//! `PASSWD_FILE` names, the terminal. (`mount.cifs` has them too.) A password that was typed is
//! passed to the daemon and its workers as `PASSWD` in their environment, which only their user can
//! read; it is never an argument, and never logged. With Kerberos there is no prompt: without a
//! password larder uses the ticket cache that `KRB5CCNAME` names.

use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use larder_remote::smb::{Credentials, Kerberos, Password};
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};

use crate::error::Usage;
use crate::options::SmbOptions;
use crate::source::Source;

/// Variable with the password.
const PASSWORD: &str = "PASSWD";
/// Variable with the name of a file whose first line is the password.
const PASSWORD_FILE: &str = "PASSWD_FILE";
/// Variable with the name of the user, if no other source names one.
const USER: &str = "USER";

/// Variable with Kerberos' ticket cache, and its default (`_UID` follows).
const TICKETS: &str = "KRB5CCNAME";
const TICKETS_DEFAULT: &str = "/tmp/krb5cc_";
/// Variable with Kerberos' configuration files, separated by colons, and its default.
const KERBEROS: &str = "KRB5_CONFIG";
const KERBEROS_DEFAULT: &str = "/etc/krb5.conf";

/// Passes a password that was asked for to a process that is about to be started.
pub(crate) fn hand(password: &Password, command: &mut Command) {
    command.env(PASSWORD, password.expose());
}

/// The login, as far as it is known without a prompt.
pub(crate) struct Login {
    /// With an empty password if that is to be asked for.
    pub(crate) credentials: Credentials,
    /// Whether the password is still to be asked for.
    pub(crate) asks: bool,
}

impl Login {
    /// None: the protocol has no login, or it is a guest's.
    pub(crate) fn nobody() -> Login {
        Login { credentials: Credentials::default(), asks: false }
    }

    /// Determines the user, and adds it to the source: the cache belongs to that user.
    ///
    /// # Errors
    /// If the settings contradict each other, or a file cannot be used.
    pub(crate) fn find(source: &mut Source, options: &SmbOptions) -> Result<Login> {
        if options.guest {
            let named = source.user.is_some() || options.username.is_some();
            ensure!(!named, Usage("a guest has no name: leave guest or the user out".to_owned()));
            ensure!(
                !options.kerberos,
                Usage("options guest and sec contradict each other".to_owned())
            );
            return Ok(Login::nobody());
        }
        let file = options.credentials.as_deref().map(Credentials::read).transpose()?;
        let has_file = file.is_some();
        let mut login = file.unwrap_or_default();
        if let Some(name) = source.user.as_deref().or(options.username.as_deref()) {
            (login.domain, login.user) = match name.split_once([';', '\\']) {
                Some((domain, user)) => (domain.to_owned(), user.to_owned()),
                None => (login.domain, name.to_owned()),
            };
        }
        if let Some(domain) = &options.domain {
            login.domain.clone_from(domain);
        }
        let password = if has_file { Some(login.password) } else { given()? };
        let asks = password.is_none() && !options.kerberos;
        login.password = password.unwrap_or_default();
        if options.kerberos {
            let kerberos = kerberos(options)?;
            kerberos.complete(&mut login)?;
            login.kerberos = Some(kerberos);
        }
        if login.user.is_empty() {
            login.user = std::env::var(USER).unwrap_or_default();
        }
        if login.user.is_empty() {
            bail!(Usage("say who logs in: smb://USER@HOST/SHARE, or -o guest".to_owned()));
        }
        source.user = Some(match login.domain.is_empty() {
            true => login.user.clone(),
            false => format!("{};{}", login.domain, login.user),
        });
        Ok(Login { credentials: login, asks })
    }

    /// Asks for what is still missing, at the terminal.
    ///
    /// # Errors
    /// If there is no terminal.
    pub(crate) fn ask(&self, source: &Source) -> Result<Option<Password>> {
        if !self.asks {
            return Ok(None);
        }
        let terminal = File::options().read(true).write(true).open("/dev/tty");
        let Some(terminal) = terminal.ok().filter(IsTerminal::is_terminal) else {
            bail!(Usage(format!(
                "no password for {source}, and no terminal to ask at: use -o credentials=FILE, or the \
                 variable {PASSWORD}"
            )));
        };
        let line = ask_at(&terminal, &format!("Password for {source}: "));
        Ok(Some(Password::new(line.context("cannot ask for the password")?)))
    }
}

/// Where Kerberos' tickets and KDCs are found.
fn kerberos(options: &SmbOptions) -> Result<Kerberos> {
    let config = std::env::var_os(KERBEROS).unwrap_or_else(|| KERBEROS_DEFAULT.into());
    let tickets = match std::env::var(TICKETS) {
        Ok(name) => ticket_file(&name).map_err(Usage)?.to_owned(),
        Err(_) => format!("{TICKETS_DEFAULT}{}", rustix::process::getuid().as_raw()),
    };
    Ok(Kerberos {
        kdc: options.kdc.clone(),
        // A daemon leaves the directory in which it was started.
        tickets: std::path::absolute(&tickets).context(TICKETS)?,
        config: std::env::split_paths(&config).collect(),
    })
}

/// The file of a ticket cache: `FILE:PATH` or a path.
fn ticket_file(name: &str) -> Result<&str, String> {
    match name.split_once(':') {
        Some(("FILE" | "WRFILE", path)) => Ok(path),
        Some((kind, _)) if !kind.contains('/') => Err(format!(
            "ticket caches of the kind {kind} cannot be used: set {TICKETS} to FILE:PATH, and run kinit"
        )),
        _ => Ok(name),
    }
}

/// The password that the environment gives.
fn given() -> Result<Option<Password>> {
    if let Ok(password) = std::env::var(PASSWORD) {
        return Ok(Some(Password::new(password)));
    }
    match std::env::var_os(PASSWORD_FILE).map(PathBuf::from) {
        Some(path) => first_line(&path).map(|line| Some(Password::new(line))),
        None => Ok(None),
    }
}

fn first_line(path: &Path) -> Result<String> {
    let shown = || format!("cannot read the password from {}", path.display());
    let mut line = String::new();
    BufReader::new(File::open(path).with_context(shown)?)
        .read_line(&mut line)
        .with_context(shown)?;
    Ok(line.trim_end_matches(['\n', '\r']).to_owned())
}

/// Reads a line that the terminal does not show.
fn ask_at(terminal: &File, question: &str) -> std::io::Result<String> {
    let shown = tcgetattr(terminal)?;
    let mut hidden = shown.clone();
    hidden.local_modes.remove(LocalModes::ECHO);
    { terminal }.write_all(question.as_bytes())?;
    tcsetattr(terminal, OptionalActions::Flush, &hidden)?;
    let mut line = String::new();
    let read = BufReader::new(terminal).read_line(&mut line);
    tcsetattr(terminal, OptionalActions::Flush, &shown)?;
    { terminal }.write_all(b"\n")?;
    read?;
    Ok(line.trim_end_matches(['\n', '\r']).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticket_caches_are_files() {
        for (name, file) in [
            ("FILE:/run/tickets", Some("/run/tickets")),
            ("/tmp/krb5cc_0", Some("/tmp/krb5cc_0")),
            ("/tmp/a:b", Some("/tmp/a:b")),
            ("KEYRING:persistent:0", None),
            ("KCM:", None),
            ("DIR:/tmp/tickets", None),
        ] {
            assert_eq!(ticket_file(name).ok(), file, "{name}");
        }
        assert!(ticket_file("KCM:0").unwrap_err().contains("FILE:PATH"));
    }
}
