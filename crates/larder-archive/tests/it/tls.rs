//! A store that is reached by TLS.

use std::net::IpAddr;
use std::time::Duration;

use crate::world::{MIB5, PREFIX, VOLUME, at, bytes, get, put, version};
use larder_archive::{Error, Place};
use larder_testkit::Versitygw;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

#[tokio::test]
async fn a_store_is_believed_that_an_authority_vouches_for() {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let authority = params.self_signed(&key).unwrap();
    let issuer = Issuer::new(params, key);
    let identity = |address: IpAddr| {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![address.to_string()]).unwrap();
        (params.signed_by(&key, &issuer).unwrap().pem(), key.serialize_pem())
    };
    let server = Versitygw::start_tls(identity).unwrap();
    let url = format!("s3://{}/{PREFIX}", Versitygw::BUCKET);
    let place = Place::parse(&url, Some(&server.endpoint()), None).unwrap();

    let trusting = place.clone().trusting(authority.pem().as_bytes()).unwrap();
    let archive = at(trusting, Versitygw::SECRET, Duration::from_secs(120));
    let (version, bytes) = (version(1, 1), bytes(3 * MIB5, 1));
    let receipt = put(&archive, &version, &bytes).await;
    assert!(get(&archive, &version, receipt).await.unwrap() == bytes);

    let archive = at(place, Versitygw::SECRET, Duration::ZERO);
    let error = archive.reach(VOLUME).await.unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::Unreachable { .. }), "{text}");
    assert!(text.contains("certificate") && text.lines().count() == 1, "{text}");
}
