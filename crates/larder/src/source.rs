//! The source of a mount: `nfs://HOST[:PORT][/EXPORT]`, `smb://[USER@]HOST[:PORT]/SHARE[/FOLDER]`,
//! `larder://HOST[:PORT][,HOST[:PORT]...]/`, or as fstab(5) has them: `HOST:/EXPORT`,
//! `//HOST/SHARE[/FOLDER]`.
//!
//! Parsing is pure. A host stays a name here; it is looked up when the mount is made.

use std::fmt;

use larder_client::Keeps;

/// How its server is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// NFSv3.
    Nfs,
    /// SMB 2.1 to 3.1.1.
    Smb,
    /// larder's own servers: a metadata server, and disks to which data is sent directly.
    Native,
}

impl Protocol {
    fn scheme(self) -> &'static str {
        match self {
            Protocol::Nfs => "nfs://",
            Protocol::Smb => "smb://",
            Protocol::Native => "larder://",
        }
    }

    /// Of which files unsent data may be kept on this machine's disk. Samba changes a file's times
    /// after a close, without a change by anybody.
    pub(crate) fn keeps(self) -> Keeps {
        match self {
            Protocol::Nfs => Keeps::Any,
            Protocol::Smb => Keeps::Empty,
            Protocol::Native => Keeps::Alone,
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Protocol::Nfs => "NFS",
            Protocol::Smb => "SMB",
            Protocol::Native => "larder",
        })
    }
}

/// An export or a share of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    /// How it is spoken to.
    pub(crate) protocol: Protocol,
    /// The user who logs in, as `[DOMAIN;]USER`, if it is part of the source (SMB).
    pub(crate) user: Option<String>,
    /// Name or address; an IPv6 address without its brackets.
    pub(crate) host: String,
    /// Where a standby takes over, each with its port (of a volume).
    pub(crate) others: Vec<(String, Option<u16>)>,
    /// Port of the service (NFS and MOUNT; SMB; the metadata server). `None`: the portmapper is
    /// asked; 445; 2050.
    pub(crate) port: Option<u16>,
    /// Path of the export on the server, absolute; of a share: `/SHARE[/FOLDER]`; of a volume:
    /// `/`.
    pub(crate) export: String,
}

/// Longest source, in bytes: paths of the MOUNT protocol have at most that (RFC 1813, 5.1.2).
const BYTES_MAX: usize = 1024;

/// The forms of a source, for errors.
const FORMS: &str = "nfs://HOST[:PORT][/EXPORT], smb://[USER@]HOST[:PORT]/SHARE or larder://HOST[:PORT][,HOST[:PORT]...]/";

impl Source {
    /// Reads a source as it was typed.
    ///
    /// # Errors
    /// A line for the user.
    pub(crate) fn parse(typed: &str) -> Result<Source, String> {
        if typed.len() > BYTES_MAX {
            return Err(format!("the source is longer than {BYTES_MAX} bytes"));
        }
        if let Some(rest) = typed.strip_prefix(Protocol::Nfs.scheme()) {
            return Source::parse_nfs(rest);
        }
        if let Some(rest) = typed.strip_prefix(Protocol::Smb.scheme()) {
            return Source::parse_smb(rest, percent_decoded);
        }
        if let Some(rest) = typed.strip_prefix(Protocol::Native.scheme()) {
            return Source::parse_native(rest);
        }
        if let Some(rest) = typed.strip_prefix("//") {
            return Source::parse_smb(rest, |path| Ok(path.to_owned()));
        }
        if let Some((scheme, _)) = typed.split_once("://") {
            return Err(format!("{scheme} is not supported: use {FORMS}"));
        }
        match typed.split_once(":/") {
            Some((host, export)) if !host.is_empty() => {
                let (host, port) = split_port(host)?;
                Ok(Source::nfs(host, port, format!("/{export}")))
            }
            _ => Err(format!("{typed:?} is no source: use {FORMS}")),
        }
    }

    fn nfs(host: String, port: Option<u16>, export: String) -> Source {
        let others = Vec::new();
        Source { protocol: Protocol::Nfs, user: None, host, others, port, export }
    }

    fn parse_nfs(rest: &str) -> Result<Source, String> {
        let (authority, path) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, "/"),
        };
        let (host, port) = split_port(authority)?;
        Ok(Source::nfs(host, port, percent_decoded(path)?))
    }

    fn parse_native(rest: &str) -> Result<Source, String> {
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let mut addresses = authority.split(',').map(split_port);
        let (host, port) = addresses.next().unwrap_or_else(|| split_port(authority))?;
        let others = addresses.collect::<Result<_, _>>()?;
        if !path.trim_matches('/').is_empty() {
            return Err(format!("a volume is mounted whole: use larder://{authority}/"));
        }
        let export = "/".to_owned();
        Ok(Source { protocol: Protocol::Native, user: None, host, others, port, export })
    }

    fn parse_smb(
        rest: &str,
        decoded: impl Fn(&str) -> Result<String, String>,
    ) -> Result<Source, String> {
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (user, authority) = match authority.rsplit_once('@') {
            Some((user, host)) => (Some(decoded(user)?), host),
            None => (None, authority),
        };
        if user.as_ref().is_some_and(|user| user.contains(':')) {
            return Err(
                "a password in the source is seen in the list of processes: use -o credentials=FILE"
                    .to_owned(),
            );
        }
        let (host, port) = split_port(authority)?;
        let export = decoded(path.trim_end_matches('/'))?;
        if export.trim_start_matches('/').is_empty() {
            return Err(format!("the source names no share: use smb://{host}/SHARE"));
        }
        let user = user.filter(|user| !user.is_empty());
        let others = Vec::new();
        Ok(Source { protocol: Protocol::Smb, user, host, others, port, export })
    }

    /// Share, and folder in it, of an SMB source.
    pub(crate) fn share(&self) -> (&str, &str) {
        let export = self.export.trim_start_matches('/');
        export.split_once('/').unwrap_or((export, ""))
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.protocol.scheme())?;
        if let Some(user) = &self.user {
            write!(f, "{user}@")?;
        }
        write_address(f, &self.host, self.port)?;
        for (host, port) in &self.others {
            f.write_str(",")?;
            write_address(f, host, *port)?;
        }
        f.write_str(&self.export)
    }
}

fn write_address(f: &mut fmt::Formatter<'_>, host: &str, port: Option<u16>) -> fmt::Result {
    match host.contains(':') {
        true => write!(f, "[{host}]")?,
        false => write!(f, "{host}")?,
    }
    port.map_or(Ok(()), |port| write!(f, ":{port}"))
}

/// Splits `HOST[:PORT]`; an IPv6 address stands in brackets.
fn split_port(authority: &str) -> Result<(String, Option<u16>), String> {
    let (host, port) = match authority.strip_prefix('[').map(|rest| rest.split_once(']')) {
        Some(Some((host, rest))) => (host, rest),
        Some(None) => return Err(format!("{authority:?}: the bracket is not closed")),
        None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
    };
    if host.is_empty() {
        return Err("the source names no host".to_owned());
    }
    if port.is_empty() {
        return Ok((host.to_owned(), None));
    }
    let number =
        port.strip_prefix(':').and_then(|port| port.parse().ok()).filter(|port| *port != 0);
    let number = number.ok_or_else(|| format!("{authority:?}: no port number after the host"))?;
    Ok((host.to_owned(), Some(number)))
}

/// RFC 3986, 2.1.
fn percent_decoded(path: &str) -> Result<String, String> {
    let bad = || format!("{path:?}: a % is not followed by two hexadecimal digits of UTF-8");
    // The library takes a % without digits for itself.
    let has_digits = |rest: &str| {
        rest.as_bytes().get(..2).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    };
    if !path.split('%').skip(1).all(has_digits) {
        return Err(bad());
    }
    let decoded = percent_encoding::percent_decode_str(path).decode_utf8();
    decoded.map(std::borrow::Cow::into_owned).map_err(|_| bad())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(host: &str, port: Option<u16>, export: &str) -> Source {
        Source::nfs(host.to_owned(), port, export.to_owned())
    }

    #[test]
    fn good_sources() {
        for (typed, meant) in [
            ("nfs://server", source("server", None, "/")),
            ("nfs://server/", source("server", None, "/")),
            ("nfs://server/export/home", source("server", None, "/export/home")),
            ("nfs://127.0.0.1:12049/", source("127.0.0.1", Some(12049), "/")),
            ("nfs://[::1]:2049/a", source("::1", Some(2049), "/a")),
            ("nfs://[fe80::1]", source("fe80::1", None, "/")),
            ("nfs://server/a%20b", source("server", None, "/a b")),
            ("server:/export", source("server", None, "/export")),
            ("[::1]:/export", source("::1", None, "/export")),
        ] {
            assert_eq!(Source::parse(typed), Ok(meant), "{typed}");
        }
    }

    #[test]
    fn bad_sources() {
        for typed in [
            "",
            "server",
            "/export",
            ":/export",
            "smb://server",
            "smb://server/",
            "smb://ann:secret@server/share",
            "http://server/share",
            "nfs://",
            "nfs:///export",
            "nfs://server:",
            "nfs://server:0/",
            "nfs://server:99999/",
            "nfs://server:x/",
            "nfs://[::1",
            "nfs://[::1]x/",
            "nfs://server/%4",
            "nfs://server/%zz",
            "nfs://server/%ff",
            "larder://",
            "larder://server/folder",
            "larder://server:0/",
            "larder://server,/",
            "larder://,server/",
            "larder://server,server:0/",
            "nfs://[::1],server/",
        ] {
            assert!(Source::parse(typed).is_err(), "{typed}");
        }
        assert!(Source::parse(&format!("nfs://server/{}", "x".repeat(BYTES_MAX))).is_err());
    }

    #[test]
    fn shares() {
        let share = |user: Option<&str>, host: &str, port, export: &str| Source {
            protocol: Protocol::Smb,
            user: user.map(str::to_owned),
            ..Source::nfs(host.to_owned(), port, export.to_owned())
        };
        for (typed, meant) in [
            ("smb://server/share", share(None, "server", None, "/share")),
            ("smb://ann@server:4450/share/", share(Some("ann"), "server", Some(4450), "/share")),
            ("smb://OFFICE;ann@[::1]/a%20b/c", share(Some("OFFICE;ann"), "::1", None, "/a b/c")),
            ("//server/share/folder", share(None, "server", None, "/share/folder")),
        ] {
            assert_eq!(Source::parse(typed), Ok(meant), "{typed}");
        }
        assert_eq!(Source::parse("//server/share/a/b").unwrap().share(), ("share", "a/b"));
        assert_eq!(Source::parse("//server/share").unwrap().share(), ("share", ""));
    }

    #[test]
    fn what_is_shown_is_read_back() {
        for typed in [
            "smb://server/share",
            "smb://OFFICE;ann@server:4450/share/folder",
            "nfs://server/",
            "nfs://[::1]:2049/a",
            "nfs://server:12049/export/home",
            "larder://server/",
            "larder://[::1]:2051/",
            "larder://one,other:2051,[::1]/",
        ] {
            assert_eq!(Source::parse(typed).unwrap().to_string(), typed);
        }
    }
}
