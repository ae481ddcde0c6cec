//! Why a login by Kerberos failed, each with the next step.

use std::path::PathBuf;

use thiserror::Error;

/// Why a login by Kerberos failed: one line with the cause and the next step.
#[derive(Debug, Error)]
pub enum KerberosError {
    /// There is no ticket cache.
    #[error(
        "there is no Kerberos ticket cache {}; run kinit, or give a password (credentials=)",
        path.display()
    )]
    NoTickets {
        /// Where it should be.
        path: PathBuf,
    },
    /// It cannot be read.
    #[error("cannot read the Kerberos ticket cache {}: {cause}; run kinit", path.display())]
    TicketsUnreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        cause: String,
    },
    /// Others may read it.
    #[error(
        "the Kerberos ticket cache {0} can be read by others; run: chmod 600 {0}", path.display()
    )]
    TicketsExposed {
        /// The file.
        path: PathBuf,
    },
    /// It is neither ours nor root's.
    #[error(
        "the Kerberos ticket cache {} belongs to user {owner}, and neither to who mounts nor to root",
        path.display()
    )]
    TicketsOfAnother {
        /// The file.
        path: PathBuf,
        /// Its owner.
        owner: u32,
    },
    /// It is of another principal than the mount.
    #[error("the Kerberos ticket cache is of {found}, and not of {wanted}; run: kinit {wanted}")]
    OtherPrincipal {
        /// Of the ticket cache.
        found: String,
        /// Of the mount.
        wanted: String,
    },
    /// It has nothing for this.
    #[error("the Kerberos ticket cache has no ticket of the realm {realm}; run kinit")]
    NoTicket {
        /// The realm.
        realm: String,
    },
    /// The tickets in it have expired.
    #[error("the Kerberos ticket of the realm {realm} has expired; run kinit")]
    Expired {
        /// The realm.
        realm: String,
    },
    /// It has an unknown kind of key.
    #[error(
        "the Kerberos ticket has the encryption type {etype}, which is not supported; run kinit with \
         default_tkt_enctypes = aes256-cts-hmac-sha1-96 in krb5.conf"
    )]
    Encryption {
        /// Its number.
        etype: u32,
    },
    /// The realm is not configured.
    #[error(
        "no Kerberos realm is named; say USER@REALM or domain=REALM, or set default_realm in krb5.conf"
    )]
    NoRealm,
    /// No KDC of the realm is configured.
    #[error(
        "no KDC of the Kerberos realm {realm} is named; say kdc=HOST, or name it in krb5.conf \
         (DNS is not asked)"
    )]
    NoKdc {
        /// The realm.
        realm: String,
    },
    /// No KDC answers.
    #[error(
        "the KDC {kdc} does not answer by TCP: {cause}; check its name (kdc=, krb5.conf), that it runs, \
         and that no firewall stands between"
    )]
    Unreachable {
        /// All that were asked.
        kdc: String,
        /// What happened instead.
        cause: String,
    },
    /// Wrong password.
    #[error("the KDC {kdc} refuses the password of {principal}; check both: case counts in names")]
    Password {
        /// The KDC that was asked.
        kdc: String,
        /// The principal that logs in.
        principal: String,
    },
    /// No such user.
    #[error("the KDC {kdc} does not know {principal}; check the user name and the realm")]
    UnknownUser {
        /// The KDC that was asked.
        kdc: String,
        /// The principal that logs in.
        principal: String,
    },
    /// No such server.
    #[error(
        "the KDC {kdc} does not know the service cifs/{host}@{realm}; mount by the name that the server \
         has in the realm"
    )]
    UnknownService {
        /// The KDC that was asked.
        kdc: String,
        /// The server, as it is called in the mount.
        host: String,
        /// The realm.
        realm: String,
    },
    /// The clocks differ.
    #[error(
        "the clocks of the KDC {kdc} and of this machine differ too much to log in; set them (NTP)"
    )]
    Clock {
        /// The KDC that was asked.
        kdc: String,
    },
    /// The KDC answered with another error.
    #[error("the KDC {kdc} refuses {principal}: Kerberos error {code} {text:?}; see its log")]
    Refused {
        /// The KDC that was asked.
        kdc: String,
        /// The principal that logs in.
        principal: String,
        /// The error (RFC 4120, 7.5.9).
        code: i32,
        /// Its own words.
        text: String,
    },
    /// The server does not take the ticket.
    #[error(
        "{host} does not accept the Kerberos ticket of {principal} ({cause}); check that it knows the \
         user, its keytab, and its clock; see its log"
    )]
    TicketRefused {
        /// The server.
        host: String,
        /// The principal that logs in.
        principal: String,
        /// The server's answer.
        cause: String,
    },
}
