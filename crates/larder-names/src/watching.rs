//! Ends of the server's leases: the client learns of them by the handles by which it knows the
//! files; and the names of a directory whose lease has ended are not trusted any more, nor changed
//! here.

use std::sync::{Arc, Weak};

use larder_vfs::{Handle, LeaseHandled, Watcher};

use crate::object::Dir;
use crate::shared::Shared;

impl Shared {
    fn dir_of(&self, file: &Handle) -> Dir {
        self.state().journal().dir(file)
    }

    /// The client, as the watcher of leases, and how it knows a file of the server.
    fn client_of(&self, file: &Handle) -> Option<(Arc<dyn Watcher>, Handle)> {
        let client = self.watcher.get().and_then(Weak::upgrade)?;
        Some((client, self.known_as(file)))
    }
}

impl Watcher for Shared {
    fn distrust<'a>(&'a self, file: &'a Handle) -> LeaseHandled<'a> {
        Box::pin(async move {
            let dir = self.dir_of(file);
            self.lease_ended(&dir);
            if let Some((client, file)) = self.client_of(file) {
                client.distrust(&file).await;
            }
        })
    }

    fn write_back<'a>(&'a self, file: &'a Handle) -> LeaseHandled<'a> {
        Box::pin(async move {
            // Of a directory the client writes what a crash must not take from the names in it.
            if let Some((client, file)) = self.client_of(file) {
                client.write_back(&file).await;
            }
            if let Some(shared) = self.this.get().and_then(Weak::upgrade) {
                shared.replay_returning(&self.dir_of(file)).await;
            }
        })
    }

    fn locks_lost(&self, file: &Handle) {
        if let Some((client, file)) = self.client_of(file) {
            client.locks_lost(&file);
        }
    }
}
