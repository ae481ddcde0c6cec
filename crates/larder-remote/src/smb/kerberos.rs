//! A login by Kerberos (RFC 4120; MS-SMB2, 3.2.4.2.3): its user, its tickets, and its errors.
//!
//! With a password the client asks the KDC for tickets at each login; otherwise it uses a ticket
//! cache, which it reads again at each login: so a mount continues as long as the tickets are
//! renewed. Tickets from the KDC are not stored.
//!
//! Absent on purpose: KDCs by DNS, realms that trust each other, principals of several parts,
//! ticket caches that are no files, encryption types other than AES with SHA-1 and RC4 (the library
//! has no more).

use super::credentials::{Credentials, Kerberos};
use super::frames::HEADER_BYTES;
use super::greeting::Greeting;
use super::kdc::{Kdc, Said};
use super::kerberos_error::KerberosError;
use super::krb5_conf::Krb5Conf;
use super::mount::{MountError, MountOptions, Step};
use super::{status, tickets};
use smb2::auth::kerberos::KerberosCredentials;
use smb2::auth::kerberos::ccache::CCache;
use smb2::auth::kerberos::messages::{parse_gss_api_wrapper, parse_krb_error};
use smb2::auth::spnego::parse_neg_token_resp;
use smb2::client::{Connection, Session};
use smb2::msg::session_setup::SessionSetupResponse;
use smb2::pack::{ReadCursor, Unpack};
use smb2::types::status::NtStatus;
use std::sync::Arc;

impl Kerberos {
    /// Completes user and realm where the credentials leave them open: from the ticket cache if
    /// there is no password, else from the configuration. Blocks.
    ///
    /// # Errors
    /// If there is no realm, or no ticket cache that can be used, or it belongs to another user.
    pub fn complete(&self, credentials: &mut Credentials) -> Result<(), KerberosError> {
        self.tickets_of(credentials).map(drop)
    }

    /// The same, and the tickets if there is no password.
    fn tickets_of(&self, login: &mut Credentials) -> Result<Option<CCache>, KerberosError> {
        if let Some((user, realm)) = login.user.clone().split_once('@') {
            (login.user, login.domain) = (user.to_owned(), realm.to_owned());
        }
        if !login.password.expose().is_empty() {
            if login.domain.is_empty() {
                let realm = Krb5Conf::read(&self.config).default_realm;
                login.domain = realm.ok_or(KerberosError::NoRealm)?;
            }
            return Ok(None);
        }
        let cache = tickets::read(&self.tickets)?;
        let owner = &cache.default_principal;
        let [user] = &owner.components[..] else {
            let cause = "its principal has several parts, which is not supported".to_owned();
            return Err(KerberosError::TicketsUnreadable { path: self.tickets.clone(), cause });
        };
        let same = |ours: &str, theirs: &str| ours.is_empty() || ours == theirs;
        if !same(&login.user, user) || !same(&login.domain, &owner.realm) {
            let found = format!("{user}@{}", owner.realm);
            return Err(KerberosError::OtherPrincipal { found, wanted: principal(login) });
        }
        (login.user, login.domain) = (user.clone(), owner.realm.clone());
        Ok(Some(cache))
    }

    fn kdcs(&self, realm: &str) -> Vec<String> {
        match &self.kdc {
            Some(kdc) => vec![kdc.clone()],
            None => Krb5Conf::read(&self.config).kdcs(realm),
        }
    }
}

fn principal(login: &Credentials) -> String {
    match login.domain.is_empty() {
        true => login.user.clone(),
        false => format!("{}@{}", login.user, login.domain),
    }
}

/// Logs in. The service is `cifs/` with the host as the mount names it.
pub(super) async fn log_in(
    kerberos: &Kerberos,
    options: &MountOptions,
    connection: &mut Connection,
    greeting: &Greeting,
) -> Result<Session, MountError> {
    let mut login = options.credentials.clone();
    let (tickets, host) = (kerberos.tickets_of(&mut login)?, &options.host);
    let realm = login.domain.clone();
    let now_s = options.clock.wall().sec.try_into().unwrap_or(0);
    let tickets = tickets.map(|cache| tickets::usable(cache, &realm, host, now_s)).transpose()?;
    let kdcs = kerberos.kdcs(&realm);
    let has_ticket = |cache: &CCache| cache.find_service_ticket("cifs", host, &realm).is_some();
    if kdcs.is_empty() && !tickets.as_ref().is_some_and(has_ticket) {
        return Err(KerberosError::NoKdc { realm }.into());
    }
    let kdc = Kdc::open(kdcs, Arc::clone(&options.clock)).await?;
    let credentials = KerberosCredentials {
        username: login.user.clone(),
        password: login.password.expose().to_owned(),
        realm,
        kdc_address: kdc.address_for_library()?,
    };
    let logging_in = async {
        match &tickets {
            Some(tickets) => {
                Session::setup_kerberos_from_ccache(connection, &credentials, host, tickets).await
            }
            None => Session::setup_kerberos(connection, &credentials, host).await,
        }
    };
    let session = tokio::select! {
        session = logging_in => session,
        error = kdc.serve() => return Err(error.into()),
    };
    if let Some(code) = objection(&greeting.login_reply()) {
        return Err(objected(options, &login, code));
    }
    session.map_err(|error| meaning(&error, options, &login, &kdc.name(), kdc.said()))
}

/// A server's objection to a ticket (RFC 4120, 7.5.9), if it asks to continue with that instead of
/// ending the login: 0 if it gives none. The library takes such a reply for a bad signature in SMB
/// 3, and for the end of the login in SMB 2.
fn objection(reply: &[u8]) -> Option<i32> {
    let status = u32::from_le_bytes(reply.get(8..12)?.try_into().ok()?);
    if !NtStatus(status).is_more_processing_required() {
        return None;
    }
    let mut body = ReadCursor::new(reply.get(HEADER_BYTES..)?);
    let said = SessionSetupResponse::unpack(&mut body).and_then(|reply| {
        let token = parse_neg_token_resp(&reply.security_buffer)?.response_token;
        let (_, inner, _) = parse_gss_api_wrapper(&token.unwrap_or_default())?;
        // The kind of token comes first (RFC 4121, 4.1).
        parse_krb_error(inner.get(2..).unwrap_or_default())
    });
    Some(said.map_or(0, |error| error.error_code))
}

/// The error for that.
fn objected(options: &MountOptions, login: &Credentials, code: i32) -> MountError {
    let host = options.host.clone();
    match code {
        33 | 37 => MountError::Clock { host },
        _ => {
            let (principal, cause) = (principal(login), format!("Kerberos error {code}"));
            KerberosError::TicketRefused { host, principal, cause }.into()
        }
    }
}

/// The meaning of an error of the library, given the KDC's last answer.
fn meaning(
    error: &smb2::Error,
    options: &MountOptions,
    login: &Credentials,
    kdc: &str,
    said: Said,
) -> MountError {
    match (error, said) {
        (smb2::Error::Protocol { status, .. }, _) if refuses_ticket(*status) => {
            KerberosError::TicketRefused {
                host: options.host.clone(),
                principal: principal(login),
                cause: status.to_string(),
            }
            .into()
        }
        (smb2::Error::Auth { .. }, Said::Error(code, text)) => {
            refused(options, login, kdc, code, text).into()
        }
        // A KDC that asks for no proof of the password issues a ticket that only the right password
        // opens.
        (_, Said::Granting) => {
            KerberosError::Password { kdc: kdc.to_owned(), principal: principal(login) }.into()
        }
        _ => MountError::at(Step::Login, options, error),
    }
}

/// Whether a status means that the server refuses the ticket, or has no user for it.
fn refuses_ticket(status: NtStatus) -> bool {
    matches!(
        status,
        NtStatus::LOGON_FAILURE
            | NtStatus::ACCESS_DENIED
            | NtStatus::INVALID_PARAMETER
            | status::BAD_TOKEN_TYPE
            | status::NO_SUCH_USER
    )
}

/// The meaning of an error of the KDC (RFC 4120, 7.5.9).
fn refused(
    options: &MountOptions,
    login: &Credentials,
    kdc: &str,
    code: i32,
    text: String,
) -> KerberosError {
    let (kdc, principal) = (kdc.to_owned(), principal(login));
    let realm = login.domain.clone();
    match code {
        6 => KerberosError::UnknownUser { kdc, principal },
        7 => KerberosError::UnknownService { kdc, host: options.host.clone(), realm },
        // Some say of a wrong password that the proof of it is damaged.
        24 | 31 if !login.password.expose().is_empty() => {
            KerberosError::Password { kdc, principal }
        }
        32 => KerberosError::Expired { realm },
        // 33: not valid yet.
        33 | 37 => KerberosError::Clock { kdc },
        _ => KerberosError::Refused { kdc, principal, code, text },
    }
}

#[cfg(test)]
mod tests {
    use super::super::credentials::Password;
    use super::*;

    #[test]
    fn each_error_of_a_kdc_says_what_to_do() {
        let login = Credentials::new("ann", Password::new("secret"));
        let login = Credentials { domain: "HOME.TEST".into(), ..login };
        let options = MountOptions::new("nas", "films", login.clone());
        for (code, wanted) in [
            (6, "does not know ann@HOME.TEST"),
            (7, "cifs/nas@HOME.TEST"),
            (24, "refuses the password of ann@HOME.TEST"),
            (32, "run kinit"),
            (33, "clocks of the KDC k:88"),
            (37, "clocks of the KDC k:88"),
            (12, "Kerberos error 12 \"of\\nthe KDC\""),
        ] {
            let error = refused(&options, &login, "k:88", code, "of\nthe KDC".into()).to_string();
            assert!(error.contains(wanted) && !error.contains('\n'), "{error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn an_objection_is_read() {
        let mut reply = vec![0; HEADER_BYTES];
        assert_eq!(objection(&reply), None);
        reply[8..12].copy_from_slice(&0xC000_0016_u32.to_le_bytes());
        for length in 0..reply.len() {
            assert_eq!(objection(&reply[..length]), None, "{length}");
        }
        assert_eq!(objection(&reply), Some(0), "it asks to go on, and does not say why");
    }

    #[test]
    fn the_realm_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("krb5.conf");
        std::fs::write(&config, "[libdefaults]\ndefault_realm = HOME.TEST\n").unwrap();
        for (user, domain, config, wanted) in [
            ("ann", "", vec![config.clone()], Some("HOME.TEST")),
            ("ann", "OFFICE.TEST", vec![config.clone()], Some("OFFICE.TEST")),
            ("ann@LAB.TEST", "", vec![config], Some("LAB.TEST")),
            ("ann", "", vec![], None),
        ] {
            let kerberos = Kerberos { config, ..Kerberos::default() };
            let mut login = Credentials::new(user, Password::new("secret"));
            login.domain = domain.to_owned();
            let realm = kerberos.complete(&mut login).map(|()| login.domain);
            assert_eq!(realm.ok().as_deref(), wanted, "{user} {domain}");
        }
    }
}
