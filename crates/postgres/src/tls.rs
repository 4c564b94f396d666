//! Encrypted connections, with certificates verified as the mode requires.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::AddressError;
use super::address::unusable;

/// Which servers to accept. Certificates come from a file, or from the system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Any server: the connection is only encrypted.
    Anyone,
    /// A server whose certificate was signed by one of these.
    Signer(Option<PathBuf>),
    /// Also the name must be the one in the address.
    Name(Option<PathBuf>),
}

/// Locations of the system's trusted certificates.
const BUNDLES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

pub(super) fn connector(trust: &Trust) -> Result<MakeRustlsConnect, AddressError> {
    let provider = Arc::new(ring::default_provider());
    let verifier: Arc<dyn ServerCertVerifier> = match trust {
        Trust::Anyone => Arc::new(Checked { provider: provider.clone(), against: None }),
        Trust::Signer(root) => {
            let against = Some(Against::of(root.as_deref(), &provider, false)?);
            Arc::new(Checked { provider: provider.clone(), against })
        }
        Trust::Name(root) => {
            let against = Some(Against::of(root.as_deref(), &provider, true)?);
            Arc::new(Checked { provider: provider.clone(), against })
        }
    };
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable(Path::new("the library"), error))?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    Ok(MakeRustlsConnect::new(config))
}

/// The requirements for a server's certificate.
#[derive(Debug)]
struct Against {
    trusted: Vec<CertificateDer<'static>>,
    signers: Arc<WebPkiServerVerifier>,
    name: bool,
}

impl Against {
    fn of(
        root: Option<&Path>,
        provider: &Arc<CryptoProvider>,
        name: bool,
    ) -> Result<Self, AddressError> {
        let system = || BUNDLES.iter().map(Path::new).find(|path| path.exists());
        let file = root
            .filter(|root| *root != Path::new("system"))
            .or_else(system)
            .ok_or_else(|| unusable(Path::new(BUNDLES[0]), "there is no such file"))?;
        let found = CertificateDer::pem_file_iter(file).map_err(|error| unusable(file, error))?;
        let trusted: Vec<CertificateDer<'static>> =
            found.collect::<Result<_, _>>().map_err(|error| unusable(file, error))?;
        let mut roots = RootCertStore::empty();
        for certificate in &trusted {
            roots.add(certificate.clone()).map_err(|error| unusable(file, error))?;
        }
        let signers =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone())
                .build()
                .map_err(|error| unusable(file, error))?;
        Ok(Self { trusted, signers, name })
    }

    /// Whether a rejected certificate is itself a trusted one, and is rejected only because it
    /// may sign others, too. PostgreSQL's own programs accept it; `openssl req -x509` creates such ones.
    fn is_trusted_itself(&self, certificate: &CertificateDer<'_>, why: &rustls::Error) -> bool {
        let only_that = format!("{why:?}").contains("CaUsedAsEndEntity");
        only_that && self.trusted.iter().any(|known| known.as_ref() == certificate.as_ref())
    }
}

/// Verifies the signer and the name, as far as required.
#[derive(Debug)]
struct Checked {
    provider: Arc<CryptoProvider>,
    against: Option<Against>,
}

impl ServerCertVerifier for Checked {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        stapled: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some(against) = &self.against else { return Ok(ServerCertVerified::assertion()) };
        match against.signers.verify_server_cert(certificate, between, name, stapled, now) {
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if !against.name => Ok(ServerCertVerified::assertion()),
            Err(why) if against.is_trusted_itself(certificate, &why) => {
                if against.name {
                    verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
                }
                Ok(ServerCertVerified::assertion())
            }
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
