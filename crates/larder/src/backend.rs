//! What a mount or an export serves: from the command line to the source, its cache, and its
//! options.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use larder_class::{Classes, LoadError};
use larder_remote::smb::{Credentials, Password};

use crate::classes::{self, IfWrong};
use crate::error::Usage;
use crate::login::Login;
use crate::mountpoint;
use crate::options::{self, Options, Remakes};
use crate::source::{Protocol, Source};

/// The word for `--cache` that means no cache on disk.
pub(crate) const NO_CACHE: &str = "none";

/// How a volume is reached from the process that serves it, whatever its addresses are for others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inside {
    /// The metadata server's socket for this process.
    pub(crate) metadata: SocketAddr,
    /// Where the disks of the volume listen.
    pub(crate) disks: IpAddr,
    /// Identifies the client, as [`larder_remote::native::MountOptions::client`] does.
    pub(crate) client: [u8; 16],
}

/// The server of a mount or an export, its cache, and its options.
#[derive(Clone, Debug)]
pub(crate) struct Backend {
    /// The export or share.
    pub(crate) source: Source,
    /// Set if this process serves the source, which is a volume.
    pub(crate) inside: Option<Inside>,
    /// The login at the server.
    pub(crate) login: Credentials,
    /// The password, if it was asked for: processes that we start need it too.
    pub(crate) asked: Option<Password>,
    /// Directory of the cache; `None`: in memory, and only as much as a file system needs.
    pub(crate) cache: Option<PathBuf>,
    /// How.
    pub(crate) options: Options,
    /// How durable files are.
    pub(crate) classes: Arc<Classes>,
    /// Why the classes are not the wanted ones.
    pub(crate) wrong_classes: Option<LoadError>,
    /// The options as typed, for people; never with a password.
    pub(crate) typed: Vec<String>,
}

impl Backend {
    /// Resolves the command line. A password that is still missing is asked for at the terminal.
    ///
    /// # Errors
    /// Of kind [`Usage`] for a wrong command line.
    pub(crate) fn find(
        source: &str,
        cache: Option<&Path>,
        options: &[String],
        if_wrong: IfWrong,
    ) -> Result<Backend> {
        let mut source = Source::parse(source).map_err(Usage)?;
        let typed = options.iter().flat_map(|one| one.split(',')).filter(|one| !one.is_empty());
        let typed: Vec<_> = typed.map(str::to_owned).collect();
        let options = options::parse_for(source.protocol, options.iter().map(String::as_str));
        let options = options.map_err(Usage)?;
        let no_cache = cache == Some(Path::new(NO_CACHE)) || options.no_disk_cache;
        if options.front_door.survive == Some(true) && no_cache {
            bail!(Usage("option survive needs a cache on disk".to_owned()));
        }
        for (name, is_set) in [("exclusive", options.exclusive), ("offline", options.offline)] {
            if is_set && no_cache {
                bail!(Usage(format!("option {name} needs a cache on disk: names are kept there")));
            }
            if is_set && options.sync {
                bail!(Usage(format!("options {name} and sync contradict each other")));
            }
        }
        if options.plain && !no_cache {
            bail!(Usage(
                "option plain needs --cache none: it is the client without one".to_owned()
            ));
        }
        let (class, rules) = (options.class.clone(), options.rules.clone());
        let mount = classes::Mount {
            protocol: source.protocol,
            on_disk: !no_cache,
            in_memory: options.scratch_bytes_max != Some(0),
            is_exclusive: options.exclusive,
            unsent_age_max: options.unsent_age_max,
        };
        let (classes, wrong_classes) = classes::of_mount(class, rules, mount, if_wrong)?;
        let login = match source.protocol {
            Protocol::Nfs | Protocol::Native => Login::nobody(),
            Protocol::Smb => Login::find(&mut source, &options.smb)?,
        };
        let asked = login.ask(&source)?;
        let mut login = login.credentials;
        if let Some(asked) = &asked {
            login.password = asked.clone();
        }
        let cache = match (cache, no_cache) {
            (_, true) => None,
            (Some(dir), false) => Some(std::path::absolute(dir).context("--cache")?),
            (None, false) => Some(default_cache_dir(&source)?),
        };
        Ok(Backend {
            source,
            inside: None,
            login,
            asked,
            cache,
            options,
            classes,
            wrong_classes,
            typed,
        })
    }

    /// Whether locks of processes are passed on to the server.
    pub(crate) fn passes_locks(&self) -> bool {
        self.source.protocol != Protocol::Nfs && !self.options.no_locks
    }

    /// When lost files are made again. Rules are stored in extended attributes.
    pub(crate) fn remakes(&self) -> Remakes {
        match self.source.protocol == Protocol::Native && self.options.xattrs {
            true => self.options.remakes,
            false => Remakes::Never,
        }
    }

    /// Whether files have extended attributes.
    pub(crate) fn has_xattrs(&self) -> bool {
        self.options.xattrs
    }
}

/// The cache directory for a source, if none was named.
fn default_cache_dir(source: &Source) -> Result<PathBuf> {
    let all = match (std::env::var_os("XDG_CACHE_HOME"), std::env::var_os("HOME")) {
        _ if rustix::process::geteuid().is_root() => PathBuf::from("/var/cache"),
        (Some(dir), _) => PathBuf::from(dir),
        (None, Some(home)) => PathBuf::from(home).join(".cache"),
        (None, None) => bail!(Usage("say where the cache is to be: --cache DIR".to_owned())),
    };
    Ok(all.join("larder").join(file_name(source)))
}

/// A readable name for a source, different for different sources.
fn file_name(source: &Source) -> String {
    let shown = source.to_string();
    let readable = shown.split_once("://").map_or(shown.as_str(), |(_, rest)| rest);
    let readable: String = readable
        .trim_end_matches('/')
        .chars()
        .map(|c| if c.is_alphanumeric() || ".-".contains(c) { c } else { '_' })
        .collect();
    format!("{readable}-{}", &mountpoint::short_name(Path::new(&shown))[..8])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_directories_of_sources_differ() {
        let name = |typed| file_name(&Source::parse(typed).unwrap());
        assert!(name("nfs://server/export").starts_with("server_export-"));
        assert!(name("smb://ann@server/share").starts_with("ann_server_share-"));
        assert_ne!(name("nfs://server/a_b"), name("nfs://server/a/b"));
        assert_ne!(name("smb://ann@server/share"), name("smb://bob@server/share"));
        assert_eq!(name("server:/export"), name("nfs://server/export"));
    }
}
