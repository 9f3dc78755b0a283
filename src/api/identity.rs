//! Authentication headers. They are cached, since building them passes several layers.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::Empty;
use kube::client::ConfigExt as _;
use tokio::time::Instant;
use tower::{BoxError, ServiceBuilder, ServiceExt as _, service_fn, util::BoxCloneSyncService};

/// Lifetime of cached headers. Tokens are renewed at least ten seconds before they expire.
const CACHE_TIME: Duration = Duration::from_secs(5);

/// Builds and caches the headers of a client's identity.
pub(super) struct Identity {
    layers: BoxCloneSyncService<Request<Empty<Bytes>>, Response<()>, BoxError>,
    cached: Mutex<Option<(Instant, HeaderMap)>>,
}

// === impl Identity ===

impl Identity {
    /// The identity of these credentials.
    pub fn new(config: &kube::Config) -> Result<Self, kube::Error> {
        let layers = ServiceBuilder::new()
            .option_layer(config.auth_layer()?)
            .layer(config.extra_headers_layer()?)
            .map_err(BoxError::from)
            .service(service_fn(async |request: Request<Empty<Bytes>>| {
                let mut echo = Response::new(());
                *echo.headers_mut() = request.into_parts().0.headers;
                Ok::<_, BoxError>(echo)
            }));
        Ok(Self {
            layers: BoxCloneSyncService::new(layers),
            cached: Mutex::default(),
        })
    }

    /// The current headers.
    pub async fn headers(&self) -> Result<HeaderMap, BoxError> {
        if let Some(headers) = self.cached() {
            return Ok(headers);
        }
        // Boxed, so that the rare case does not enlarge every request's future.
        let echo = Box::pin(self.layers.clone().oneshot(Request::default())).await?;
        let headers = echo.into_parts().0.headers;
        let cached = Some((Instant::now(), headers.clone()));
        *self.cached.lock().unwrap_or_else(PoisonError::into_inner) = cached;
        Ok(headers)
    }

    fn cached(&self) -> Option<HeaderMap> {
        let cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, headers) = cached.as_ref()?;
        (since.elapsed() < CACHE_TIME).then(|| headers.clone())
    }
}
