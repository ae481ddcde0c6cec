//! Mounts a share: makes the connections, and examines the share's root.

use super::attr::Info;
use super::channel::Channel;
use super::connector::{self, Connector};
use super::link::{Accounts, COMMANDS, Link, garbled};
use super::mount::{CONNECT_MAX, MountError, MountOptions};
use super::names;
use super::paths::Paths;
use super::share::{self, Root, Share};
use super::status::{self, Failure};
use super::wire::{self, Opening, PREVIOUS};
use larder_rpc::stats::Procedures;
use larder_vfs::{Error, RemoteLimits};
use smb2::msg::directory_info::parse_entries;
use smb2::msg::query_directory::{FileInformationClass, QueryDirectoryResponse};
use smb2::msg::query_info::QueryInfoResponse;
use smb2::types::SessionId;
use std::sync::Arc;

/// Largest file where the server does not say: offsets are signed.
const FILE_SIZE_MAX: u64 = i64::MAX as u64;

/// Smallest payload that is requested, in bytes, whatever the options say.
const PAYLOAD_BYTES_MIN: u32 = 1024;

/// Connects and describes the root.
pub(super) async fn mount(options: &MountOptions) -> Result<Arc<Share>, MountError> {
    let accounts = Arc::new(Procedures::new(COMMANDS));
    let connector = Arc::new(Connector::default());
    let account = Accounts::new(&accounts, &options.clock);
    let link = connector::connect(options, &connector, SessionId::NONE, account).await?;
    let base = names::subpath(&options.path);
    let further = async { Ok(connector::further(options, &connector, &accounts).await) };
    let (look, further) = tokio::try_join!(root_in_time(options, &link, &base), further)?;
    let channels: Vec<_> =
        std::iter::once(Channel::new(Arc::clone(&link), options)).chain(further).collect();
    let root = look.root(options, &link, base);
    tracing::info!(
        host = options.host,
        share = options.share,
        version = link.version().name(),
        leases = root.leases,
        connections = channels.len(),
        "mounted an SMB share"
    );
    let share = Arc::new(Share::new(options, connector, accounts, channels, root));
    share.listen();
    Ok(share)
}

/// What the description of the root says about the share.
struct RootLook {
    info: Info,
    volume: u64,
    case_sensitive: bool,
    name_max: u32,
    by_path: bool,
}

impl RootLook {
    fn root(&self, options: &MountOptions, link: &Link, path: String) -> Root {
        let by_path = self.by_path || !options.server_ids;
        Root {
            handle: match by_path {
                true => Paths::handle_by_path(&path),
                false => self.info.identity().handle(self.volume),
            },
            path,
            volume: self.volume,
            limits: self.limits(options, link),
            by_path,
            leases: options.leases && link.has_leases(),
        }
    }

    fn limits(&self, options: &MountOptions, link: &Link) -> RemoteLimits {
        let (read_max, write_max) = link.payloads_max();
        RemoteLimits {
            read_max: options.read_max.clamp(PAYLOAD_BYTES_MIN, read_max),
            write_max: options.write_max.clamp(PAYLOAD_BYTES_MIN, write_max),
            readdir_preferred: 1 << 16,
            file_size_max: FILE_SIZE_MAX,
            name_max: self.name_max,
            time_delta_ns: 100,
            links: true,
            symlinks: options.symlinks,
            case_insensitive: !self.case_sensitive,
            opens: true,
            by_name: true,
        }
    }
}

async fn root_in_time(
    options: &MountOptions,
    link: &Arc<Link>,
    base: &str,
) -> Result<RootLook, MountError> {
    let root = options.clock.timeout(CONNECT_MAX, root(link, base));
    let root = root.await.map_err(|_| MountError::too_slow(options))?;
    root.map_err(|failure| no_root(options, failure))
}

async fn root(link: &Arc<Link>, base: &str) -> Result<RootLook, Failure> {
    let opening =
        Opening { options: wire::DIRECTORY_FILE, ..Opening::existing(base.to_owned(), wire::LOOK) };
    let opened = share::open(link, opening.clone()).await?;
    let id = opened.open.id;
    let volume = link.ask(wire::query_volume(id, wire::FS_VOLUME_INFORMATION)).await?;
    let volume = volume.read::<QueryInfoResponse>();
    let attributes = link.ask(wire::query_volume(id, wire::FS_ATTRIBUTE_INFORMATION)).await?;
    let attributes = attributes.read::<QueryInfoResponse>();
    opened.open.close().await;
    let again = share::look(link, opening).await?;
    let sensitive = probe_case(link, base).await;
    let volume = volume.and_then(|one| wire::volume_serial(&one.output_buffer).map_err(garbled));
    let attributes =
        attributes.and_then(|one| wire::volume_attributes(&one.output_buffer).map_err(garbled));
    // A server may lack either.
    let (_, name_max) = attributes.unwrap_or((false, 255));
    let identity = opened.info.identity();
    Ok(RootLook {
        info: opened.info,
        volume: u64::from(volume.unwrap_or(0)),
        case_sensitive: sensitive.unwrap_or(false),
        name_max: name_max.clamp(14, 255),
        by_path: identity.is_invented() || identity.file_id != again.info.file_id,
    })
}

/// Whether names are case sensitive: whether a name in the root is found in the other case. `None`
/// if no name there can show that. Servers cannot be asked: Samba answers "sensitive" whatever its
/// configuration is.
async fn probe_case(link: &Arc<Link>, base: &str) -> Option<bool> {
    let opening =
        Opening { options: wire::DIRECTORY_FILE, ..Opening::existing(base.to_owned(), wire::READ) };
    let ops = vec![opening.op(), wire::list(PREVIOUS, wire::ANSWER_BYTES), wire::close(PREVIOUS)];
    let replies = link.chain(ops).await.ok()?;
    let listed = replies.get(1)?.read::<QueryDirectoryResponse>().ok()?;
    let class = FileInformationClass::FileIdBothDirectoryInformation;
    let entries = parse_entries(class, &listed.output_buffer).ok()?;
    let (entry, other) = entries.iter().find_map(|entry| {
        let name = &entry.file_name;
        let upper = name.to_uppercase();
        let other = if upper == *name { name.to_lowercase() } else { upper };
        let tells = other != *name && entries.iter().all(|one| one.file_name != other);
        tells.then_some((entry, other))
    })?;
    let seen = share::look(link, Opening::existing(names::join(base, &other), wire::LOOK)).await;
    match seen {
        Ok(seen) => Some(Some(seen.info.file_id) != entry.file_id),
        Err(failure) => failure.is_absence().then_some(true),
    }
}

fn no_root(options: &MountOptions, failure: Failure) -> MountError {
    let (share, path) = (options.share.clone(), options.path.clone());
    let cause = match failure {
        Failure::Status(code) => status::error(code),
        Failure::Lost => Error::Io,
        Failure::Is(error) => error,
    };
    MountError::NoSuchFolder { share, path, cause }
}
