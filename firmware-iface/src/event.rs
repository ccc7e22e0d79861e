//! Event types: byte 1 of an event queue entry, and the bits of an event queue's mask.

use core::fmt;

use crate::status::numbers;

numbers! {
    /// What an EQE tells of. In `create_eq_in.event_bitmask`, type `t` is bit `t % 64` of word `t / 64`.
    pub struct EventType(u8) {
        COMPLETION = 0x00, "completion on a CQ";
        PATH_MIGRATED = 0x01, "path migrated";
        COMM_ESTABLISHED = 0x02, "communication established";
        SQ_DRAINED = 0x03, "send queue drained";
        CQ_ERROR = 0x04, "CQ error";
        WQ_CATASTROPHIC_ERROR = 0x05, "work queue catastrophic error";
        PATH_MIGRATION_FAILED = 0x07, "path migration failed";
        INTERNAL_ERROR = 0x08, "internal error";
        PORT_CHANGE = 0x09, "port change";
        COMMAND = 0x0a, "command completed";
        PAGE_REQUEST = 0x0b, "page request";
        PAGE_FAULT = 0x0c, "page fault";
        NIC_VPORT_CHANGE = 0x0d, "NIC vport change";
        WQ_INVALID_REQUEST = 0x10, "invalid request on a work queue";
        WQ_ACCESS_ERROR = 0x11, "access error on a work queue";
        SRQ_CATASTROPHIC_ERROR = 0x12, "SRQ catastrophic error";
        SRQ_LAST_WQE = 0x13, "last WQE of an SRQ reached";
        SRQ_LIMIT = 0x14, "SRQ limit reached";
        PORT_MODULE = 0x16, "port module event";
        TEMPERATURE_WARNING = 0x17, "temperature warning";
        GENERAL = 0x22, "general event";
    }
}

impl EventType {
    /// The word of an event mask in which this type's bit is, and the bit.
    pub const fn mask_position(self) -> (usize, u64) {
        ((self.0 / 64) as usize, 1 << (self.0 % 64))
    }
}

numbers! {
    /// Subtype of [`EventType::PORT_CHANGE`].
    pub struct PortChange(u8) {
        DOWN = 0x01, "port down";
        ACTIVE = 0x04, "port active";
        INITIALIZED = 0x05, "port initialized";
        LID = 0x06, "LID changed";
        PKEY = 0x07, "P_Key changed";
        GUID = 0x08, "GUID changed";
        CLIENT_REREGISTER = 0x09, "client reregister";
    }
}

numbers! {
    /// What kind of queue a QP event names (`qp_events.type`).
    pub struct QpEventQueue(u8) {
        QP = 0x00, "QP";
        RQ = 0x01, "RQ";
        SQ = 0x02, "SQ";
        DCT = 0x06, "DCT";
    }
}

numbers! {
    /// Why a CQ is in error (`cq_error.syndrome`).
    pub struct CqErrorSyndrome(u8) {
        OVERRUN = 0x01, "CQ overrun";
        ACCESS_VIOLATION = 0x02, "CQ access violation";
    }
}
