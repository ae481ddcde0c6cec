//! The file in which kinit(1) keeps tickets.

use super::credentials::is_private;
use super::kerberos_error::KerberosError;
use rustix::fs::OFlags;
use smb2::auth::kerberos::ccache::{CCache, CcacheCredential, parse_ccache};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Largest file, in bytes.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// Reads a ticket cache. Blocks.
///
/// # Errors
/// If it does not exist, others may read it, it belongs to another user, or it cannot be decoded.
pub(super) fn read(path: &Path) -> Result<CCache, KerberosError> {
    let path = || path.to_owned();
    let unreadable = |cause: std::io::Error| match cause.kind() {
        ErrorKind::NotFound => KerberosError::NoTickets { path: path() },
        _ => KerberosError::TicketsUnreadable { path: path(), cause: cause.to_string() },
    };
    // It may be in /tmp, where any user could have put a pipe in its place: opening that must not
    // block.
    let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
    let opened = std::fs::File::options().read(true).custom_flags(nonblocking).open(path());
    let file = opened.map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    let owner = metadata.uid();
    if owner != 0 && owner != rustix::process::geteuid().as_raw() {
        return Err(KerberosError::TicketsOfAnother { path: path(), owner });
    }
    if !is_private(&metadata) {
        return Err(KerberosError::TicketsExposed { path: path() });
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX).read_to_end(&mut bytes).map_err(unreadable)?;
    parse_ccache(&bytes).map_err(|cause| KerberosError::TicketsUnreadable {
        path: path(),
        cause: cause.to_string(),
    })
}

/// Keeps the tickets that can be used at `now_s` (seconds since 1970): the library takes the first
/// ticket that it finds, whether it has expired or not.
///
/// # Errors
/// If none is left.
pub(super) fn usable(
    mut cache: CCache,
    realm: &str,
    service: &str,
    now_s: u64,
) -> Result<CCache, KerberosError> {
    let is_ours = |one: &CcacheCredential| {
        let [first, second] = &one.server.components[..] else { return false };
        let granting = first == "krbtgt" && second == realm;
        let ticket = first == "cifs" && second.eq_ignore_ascii_case(service);
        one.server.realm == realm && (granting || ticket)
    };
    cache.credentials.retain(is_ours);
    if cache.credentials.is_empty() {
        return Err(KerberosError::NoTicket { realm: realm.to_owned() });
    }
    cache.credentials.retain(|one| u64::from(one.endtime) > now_s);
    if cache.credentials.is_empty() {
        return Err(KerberosError::Expired { realm: realm.to_owned() });
    }
    let etype = cache.credentials[0].key_etype;
    cache.credentials.retain(has_known_key);
    match cache.credentials.is_empty() {
        true => Err(KerberosError::Encryption { etype: etype.into() }),
        false => Ok(cache),
    }
}

/// AES with SHA-1 (RFC 3962), RC4 (RFC 4757): the types that the library has; it asserts the
/// lengths.
fn has_known_key(one: &CcacheCredential) -> bool {
    matches!((one.key_etype, one.key_data.len()), (17, 16) | (18, 32) | (23, 16))
}

#[cfg(test)]
mod tests {
    use super::*;
    use smb2::auth::kerberos::ccache::CcachePrincipal;
    use std::os::unix::fs::PermissionsExt;

    fn principal(components: &[&str]) -> CcachePrincipal {
        CcachePrincipal {
            name_type: 1,
            realm: "HOME.TEST".into(),
            components: components.iter().map(ToString::to_string).collect(),
        }
    }

    fn ticket(server: &[&str], endtime: u32, key_etype: u16, key_bytes: usize) -> CcacheCredential {
        CcacheCredential {
            client: principal(&["ann"]),
            server: principal(server),
            key_etype,
            key_data: vec![0; key_bytes],
            authtime: 0,
            starttime: 0,
            endtime,
            renew_till: 0,
            ticket: vec![],
        }
    }

    fn left(credentials: Vec<CcacheCredential>) -> Result<usize, String> {
        let cache = CCache { version: 4, default_principal: principal(&["ann"]), credentials };
        let usable = usable(cache, "HOME.TEST", "nas", 1000);
        usable.map(|cache| cache.credentials.len()).map_err(|error| error.to_string())
    }

    #[test]
    fn what_has_expired_is_not_used() {
        let granting = |end| ticket(&["krbtgt", "HOME.TEST"], end, 18, 32);
        let service = |end| ticket(&["cifs", "NAS"], end, 17, 16);
        assert_eq!(left(vec![granting(1001), service(1001)]), Ok(2));
        assert_eq!(left(vec![granting(1001), service(1000)]), Ok(1));
        assert!(left(vec![granting(1000), service(999)]).unwrap_err().contains("expired"));
        assert!(left(vec![]).unwrap_err().contains("kinit"));
        assert!(left(vec![ticket(&["cifs", "other"], 1001, 18, 32)]).is_err());
    }

    #[test]
    fn keys_of_another_kind_or_length_are_refused() {
        for (etype, bytes) in [(18, 31), (17, 32), (20, 32), (23, 0)] {
            let one = ticket(&["krbtgt", "HOME.TEST"], 1001, etype, bytes);
            assert!(left(vec![one]).unwrap_err().contains("encryption type"), "{etype} {bytes}");
        }
    }

    #[test]
    fn a_file_that_is_no_private_ticket_cache_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tickets");
        let refusal = || read(&path).unwrap_err().to_string();
        assert!(refusal().contains("run kinit"), "{}", refusal());
        std::fs::write(&path, "nonsense").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        assert!(refusal().contains("chmod 600"), "{}", refusal());
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert!(refusal().contains("version"), "{}", refusal());
    }
}
