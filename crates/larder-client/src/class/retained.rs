//! Files whose bytes are in this machine's memory until somebody asks for them.

use larder_vfs::Volatile;

use super::volatile;
use crate::core::Core;
use crate::node::Node;

impl Core {
    /// Whether the server has other clients wait for a file until its bytes were sent.
    pub(crate) fn is_retained(&self, node: &Node) -> bool {
        node.handle().is_ok_and(|it| self.remote.retains(&it))
    }

    /// How the bytes of a file are kept in the memory of other machines that were retained here,
    /// and that nobody has open to write any more.
    pub(crate) fn volatile_if_retained(&self, node: &Node) -> Option<Volatile> {
        let is_written = self.open_files.any_of(node.ino, |open| open.flags.write);
        let class =
            (self.is_retained(node) && !is_written).then(|| self.class_for_owner(node).class)?;
        volatile(&class).filter(|_| class.is_retained)
    }
}
