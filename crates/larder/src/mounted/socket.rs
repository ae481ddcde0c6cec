//! The control socket of a mount's daemon: the answering object may change while it is served.

use std::sync::{Arc, PoisonError, RwLock};

use anyhow::{Result, bail};
use serde_json::Value;

use crate::control::{Request, Server, Serving, Sink};

/// Answers requests.
type Answer = dyn Fn(&Request, &mut dyn Sink) -> Result<Value> + Send + Sync;

/// The control socket.
pub(super) enum Socket {
    /// A client that connects waits.
    Bound(Server),
    /// Requests are answered.
    Served(Arc<RwLock<Arc<Answer>>>, Serving),
    /// It could not be served.
    Lost,
}

impl Socket {
    /// Has `answer` answer the requests from now on.
    ///
    /// # Errors
    /// If no thread can be started.
    pub(super) fn serve(
        &mut self,
        answer: impl Fn(&Request, &mut dyn Sink) -> Result<Value> + Send + Sync + 'static,
    ) -> Result<Serving> {
        let answer: Arc<Answer> = Arc::new(answer);
        match std::mem::replace(self, Socket::Lost) {
            Socket::Bound(server) => {
                let current = Arc::new(RwLock::new(answer));
                let served = Arc::clone(&current);
                let serving = server.serve(move |request, sink| {
                    // Not under the lock: a request to the previous object may wait for the next
                    // one.
                    let answer = Arc::clone(&served.read().unwrap_or_else(PoisonError::into_inner));
                    answer(&request, sink)
                })?;
                *self = Socket::Served(current, serving.clone());
                Ok(serving)
            }
            Socket::Served(current, serving) => {
                *current.write().unwrap_or_else(PoisonError::into_inner) = answer;
                *self = Socket::Served(current, serving.clone());
                Ok(serving)
            }
            Socket::Lost => bail!("the control socket could not be served"),
        }
    }
}
