//! The header of all management datagrams (MADs).

use super::MadError;
use super::layout::{At, Block, layout};

pub(super) const HEADER_LEN: usize = 24;

pub(super) const BASE_VERSION: u8 = 1;
/// The management class of the CM.
pub(super) const CLASS: u8 = 0x07;
pub(super) const CLASS_VERSION: u8 = 2;
pub(super) const METHOD_SEND: u8 = 0x03;

/// The MAD header fields that differ between CM messages.
pub(super) struct Header {
    pub(super) transaction_id: u64,
    /// The kind of message.
    pub(super) attribute_id: u16,
    /// The options of an [`Ece`](super::Ece).
    pub(super) attribute_modifier: u32,
}

impl Header {
    /// Parses a header, and checks that its class, versions and method are those of the CM.
    pub(super) fn parse(bytes: [u8; HEADER_LEN]) -> Result<Header, MadError> {
        let fields = Fields::read(&Block(bytes));
        if fields.base_version != BASE_VERSION {
            return Err(MadError::BaseVersion(fields.base_version));
        }
        if fields.class != CLASS {
            return Err(MadError::Class(fields.class));
        }
        if fields.class_version != CLASS_VERSION {
            return Err(MadError::ClassVersion(fields.class_version));
        }
        if fields.method != METHOD_SEND {
            return Err(MadError::Method(fields.method));
        }
        Ok(Header {
            transaction_id: fields.transaction_id,
            attribute_id: fields.attribute_id,
            attribute_modifier: fields.attribute_modifier,
        })
    }

    pub(super) fn emit(&self) -> [u8; HEADER_LEN] {
        let fields = Fields {
            base_version: BASE_VERSION,
            class: CLASS,
            class_version: CLASS_VERSION,
            method: METHOD_SEND,
            transaction_id: self.transaction_id,
            attribute_id: self.attribute_id,
            attribute_modifier: self.attribute_modifier,
        };
        let mut block = Block([0; HEADER_LEN]);
        fields.write(&mut block);
        block.0
    }
}

layout! {
    /// The common MAD header (vol. 1, 13.4.3), without the status, the class-specific field and the reserved bytes,
    /// which are zero in CM messages.
    struct Fields in HEADER_LEN {
        base_version: u8 = At<0>,
        class: u8 = At<1>,
        class_version: u8 = At<2>,
        method: u8 = At<3>,
        transaction_id: u64 = At<8>,
        attribute_id: u16 = At<16>,
        attribute_modifier: u32 = At<20>,
    }
}
