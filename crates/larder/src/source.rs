//! What is mounted: `nfs://HOST[:PORT][/EXPORT]`, or `HOST:/EXPORT` as fstab(5) has it.
//!
//! Parsing is pure. A host stays a name here; it is looked up when the mount is made.

use std::fmt;

/// An export of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    /// Name or address; an IPv6 address without its brackets.
    pub(crate) host: String,
    /// Port of the NFS and MOUNT services. `None`: the portmapper is asked.
    pub(crate) port: Option<u16>,
    /// Path of the export on the server, absolute.
    pub(crate) export: String,
}

/// Longest source, in bytes: paths of the MOUNT protocol have at most that (RFC 1813, 5.1.2).
const BYTES_MAX: usize = 1024;

/// Scheme of the URL.
const SCHEME: &str = "nfs://";

impl Source {
    /// Reads a source as it was typed.
    ///
    /// # Errors
    /// A line for the user.
    pub(crate) fn parse(typed: &str) -> Result<Source, String> {
        if typed.len() > BYTES_MAX {
            return Err(format!("the source is longer than {BYTES_MAX} bytes"));
        }
        if let Some(rest) = typed.strip_prefix(SCHEME) {
            return Source::parse_url(rest);
        }
        if let Some((scheme, _)) = typed.split_once("://") {
            return Err(format!("{scheme} is not supported: use nfs://HOST[:PORT][/EXPORT]"));
        }
        match typed.split_once(":/") {
            Some((host, export)) if !host.is_empty() => {
                let (host, port) = split_port(host)?;
                Ok(Source { host, port, export: format!("/{export}") })
            }
            _ => Err(format!("{typed:?} is no source: use nfs://HOST[:PORT][/EXPORT]")),
        }
    }

    fn parse_url(rest: &str) -> Result<Source, String> {
        let (authority, path) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, "/"),
        };
        let (host, port) = split_port(authority)?;
        Ok(Source { host, port, export: percent_decoded(path)? })
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "{SCHEME}[{}]", self.host)?,
            false => write!(f, "{SCHEME}{}", self.host)?,
        }
        if let Some(port) = self.port {
            write!(f, ":{port}")?;
        }
        f.write_str(&self.export)
    }
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
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || char::from(rest.next()?).to_digit(16);
        let (high, low) = (digit().ok_or_else(bad)?, digit().ok_or_else(bad)?);
        bytes.push(u8::try_from(high * 16 + low).map_err(|_| bad())?);
    }
    String::from_utf8(bytes).map_err(|_| bad())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(host: &str, port: Option<u16>, export: &str) -> Source {
        Source { host: host.to_owned(), port, export: export.to_owned() }
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
            "smb://server/share",
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
        ] {
            assert!(Source::parse(typed).is_err(), "{typed}");
        }
        assert!(Source::parse(&format!("nfs://server/{}", "x".repeat(BYTES_MAX))).is_err());
    }

    #[test]
    fn what_is_shown_is_read_back() {
        for typed in ["nfs://server/", "nfs://[::1]:2049/a", "nfs://server:12049/export/home"] {
            assert_eq!(Source::parse(typed).unwrap().to_string(), typed);
        }
    }
}
