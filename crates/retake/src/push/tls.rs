//! Encrypted connections, trusted as far as the mode asks for.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::AddressError;
use super::address::unusable;

/// Whom we talk to. Certificates are those of a file, or the system's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Trust {
    /// Encrypted, but with whoever answers.
    Anyone,
    /// With someone whose certificate was signed by one of these.
    Signer(Option<PathBuf>),
    /// And who has the name that we asked for.
    Name(Option<PathBuf>),
}

/// Where systems keep the certificates that they trust.
const BUNDLES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

pub(super) fn connector(trust: &Trust) -> Result<MakeRustlsConnect, AddressError> {
    let provider = Arc::new(ring::default_provider());
    let verifier: Arc<dyn ServerCertVerifier> = match trust {
        Trust::Anyone => Arc::new(Lenient { provider: provider.clone(), signers: None }),
        Trust::Signer(root) => {
            let signers = Some(signers(root.as_deref(), &provider)?);
            Arc::new(Lenient { provider: provider.clone(), signers })
        }
        Trust::Name(root) => signers(root.as_deref(), &provider)?,
    };
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable(Path::new("the library"), error))?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    Ok(MakeRustlsConnect::new(config))
}

fn signers(
    root: Option<&Path>,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<WebPkiServerVerifier>, AddressError> {
    let system = || BUNDLES.iter().map(Path::new).find(|path| path.exists());
    let file = root
        .filter(|root| *root != Path::new("system"))
        .or_else(system)
        .ok_or_else(|| unusable(Path::new(BUNDLES[0]), "there is no such file"))?;
    let mut roots = RootCertStore::empty();
    let found = CertificateDer::pem_file_iter(file).map_err(|error| unusable(file, error))?;
    for certificate in found {
        roots
            .add(certificate.map_err(|error| unusable(file, error))?)
            .map_err(|error| unusable(file, error))?;
    }
    WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .build()
        .map_err(|error| unusable(file, error))
}

/// Checks who signed, if that is asked for, and never the name.
#[derive(Debug)]
struct Lenient {
    provider: Arc<CryptoProvider>,
    signers: Option<Arc<WebPkiServerVerifier>>,
}

impl ServerCertVerifier for Lenient {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        stapled: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some(signers) = &self.signers else { return Ok(ServerCertVerified::assertion()) };
        match signers.verify_server_cert(certificate, between, name, stapled, now) {
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
