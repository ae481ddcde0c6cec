//! TLS for connections (RFC 9289), with identities from certificates in files.
//!
//! A client asks by a NULL call of flavor AUTH_TLS, in the clear, whether the server supports TLS;
//! if it does, what follows on the connection is TLS 1.3 with the protocol name `sunrpc` (RFC 9289,
//! 4.1, 5.1).
//!
//! Invariants:
//! - A client that is to use TLS sends nothing else in the clear, whatever the server answers.
//! - No byte from before the handshake counts as part of what comes after it.
//! - A key that others than its owner may read is not used.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use thiserror::Error;
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// The name of RPC among the protocols above TLS (RFC 9289, 7.2).
const PROTOCOL: &[u8] = b"sunrpc";

/// A certificate and its key, in PEM.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The file with the certificate, and those between it and one that the other side trusts.
    pub certificate: PathBuf,
    /// The file with its private key, which only its owner may read.
    pub key: PathBuf,
}

/// Why TLS cannot be used.
#[derive(Debug, Error)]
pub enum TlsError {
    /// A file cannot be read, or holds something else.
    #[error("cannot use {path}: {cause}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        cause: String,
    },
    /// Others may read a key.
    #[error("others than its owner may use the key {path} (mode {mode:o}): chmod 600 it")]
    ExposedKey {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// The files do not fit together.
    #[error("cannot use TLS: {0}")]
    Refused(String),
}

/// How a client speaks TLS.
#[derive(Clone)]
pub struct ClientTls {
    connector: TlsConnector,
    name: ServerName<'static>,
}

/// How a server speaks TLS.
#[derive(Clone)]
pub struct ServerTls {
    pub(crate) acceptor: TlsAcceptor,
    /// Calls in the clear are refused, but for NULL.
    pub(crate) is_required: bool,
}

impl ClientTls {
    /// Servers have certificates for `name`, below one of those in `authorities`; `identity` is
    /// ours, where servers want one. Reads the files.
    ///
    /// # Errors
    /// [`TlsError`]
    pub fn new(
        name: &str,
        authorities: &Path,
        identity: Option<&Identity>,
    ) -> Result<ClientTls, TlsError> {
        let connector =
            TlsConnector::from(Arc::new(client_config(authorities, identity, PROTOCOL)?));
        let name = ServerName::try_from(name.to_owned())
            .map_err(|cause| TlsError::Refused(format!("{name}: {cause}")))?;
        Ok(ClientTls { connector, name })
    }

    pub(crate) async fn connect(
        &self,
        stream: tokio::net::TcpStream,
    ) -> io::Result<tokio_rustls::client::TlsStream<tokio::net::TcpStream>> {
        let stream = self.connector.connect(self.name.clone(), stream).await?;
        let agreed = stream.get_ref().1.alpn_protocol();
        if agreed == Some(PROTOCOL) {
            return Ok(stream);
        }
        Err(io::Error::new(io::ErrorKind::InvalidData, "the server speaks TLS, but not for RPC"))
    }
}

impl ServerTls {
    /// Shows `identity`. With `authorities`, clients must show a certificate below one of those. If
    /// `is_required`, calls in the clear are refused. Reads the files.
    ///
    /// # Errors
    /// [`TlsError`]
    pub fn new(
        identity: &Identity,
        authorities: Option<&Path>,
        is_required: bool,
    ) -> Result<ServerTls, TlsError> {
        let refused = |cause: rustls::Error| TlsError::Refused(cause.to_string());
        let (chain, key) = load(identity)?;
        let builder = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(refused)?;
        let builder = match authorities {
            None => builder.with_no_client_auth(),
            Some(authorities) => {
                let roots = Arc::new(trusted(authorities)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider());
                let verifier = verifier.build();
                let verifier = verifier.map_err(|cause| TlsError::Refused(cause.to_string()))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let mut config = builder.with_single_cert(chain, key).map_err(refused)?;
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        Ok(ServerTls { acceptor: TlsAcceptor::from(Arc::new(config)), is_required })
    }
}

impl std::fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientTls").field("name", &self.name).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerTls").field("is_required", &self.is_required).finish_non_exhaustive()
    }
}

/// TLS 1.3 for a client of another protocol, which has this name among those above TLS. Servers
/// have certificates below one of those in `authorities`. Reads that file.
///
/// # Errors
/// [`TlsError`]
pub fn tls_connector(authorities: &Path, protocol: &[u8]) -> Result<TlsConnector, TlsError> {
    Ok(TlsConnector::from(Arc::new(client_config(authorities, None, protocol)?)))
}

fn client_config(
    authorities: &Path,
    identity: Option<&Identity>,
    protocol: &[u8],
) -> Result<ClientConfig, TlsError> {
    let refused = |cause: rustls::Error| TlsError::Refused(cause.to_string());
    let roots = trusted(authorities)?;
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(refused)?
        .with_root_certificates(roots);
    let mut config = match identity {
        None => builder.with_no_client_auth(),
        Some(identity) => {
            let (chain, key) = load(identity)?;
            builder.with_client_auth_cert(chain, key).map_err(refused)?
        }
    };
    config.alpn_protocols = vec![protocol.to_vec()];
    Ok(config)
}

/// The cryptography of every TLS here. It is named wherever a configuration is made: rustls guesses
/// none where another crate of the same build has chosen another.
pub(crate) fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn file_error(path: &Path, cause: impl ToString) -> TlsError {
    TlsError::File { path: path.to_owned(), cause: cause.to_string() }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read = CertificateDer::pem_file_iter(path).map_err(|cause| file_error(path, cause))?;
    let found: Vec<_> = read.collect::<Result<_, _>>().map_err(|cause| file_error(path, cause))?;
    if found.is_empty() {
        return Err(file_error(path, "it has no certificate"));
    }
    Ok(found)
}

/// The certificates below which others are trusted.
fn trusted(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|cause| file_error(path, cause))?;
    }
    Ok(roots)
}

fn load(
    identity: &Identity,
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TlsError> {
    let path = &identity.key;
    let metadata = std::fs::metadata(path).map_err(|cause| file_error(path, cause))?;
    let mode = metadata.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(TlsError::ExposedKey { path: path.clone(), mode });
    }
    let key = PrivateKeyDer::from_pem_file(path).map_err(|cause| file_error(path, cause))?;
    Ok((certificates(&identity.certificate)?, key))
}
