//! Event queues and their interrupts.

use std::os::fd::BorrowedFd;

use ferroce_firmware_iface::cmds::{CreateEq, DestroyEq};
use ferroce_firmware_iface::event::EventType;
use ferroce_firmware_iface::layout::ValueTooWide;
use ferroce_firmware_iface::layouts::Eqc;
use ferroce_hw_regs::ids::Eqn;

use crate::caps::Caps;
use crate::context::OpenConfig;
use crate::eq::{EQE_BYTES, EqRing, EventVector, prepare};
use crate::error::{CommandError, StepError};
use crate::hca::Hca;
use crate::uar::Uar;

/// Bytes of a page in a queue's page list.
const PAGE: usize = 4096;
/// Least size of an event queue: one page of entries.
const MIN_EQ_LOG_SIZE: u8 = (PAGE / EQE_BYTES).ilog2() as u8;
/// Entries of the command queue's and the pages' queues. Source: Linux mlx5.
const SMALL_LOG_SIZE: u8 = 8;
/// Entries of the asynchronous queue. Source: Linux mlx5 has 8192; ours is half, since it serves one process.
const ASYNC_LOG_SIZE: u8 = 12;

/// Events that every device has. Source: Linux mlx5.
const ASYNC_EVENTS: [EventType; 12] = [
    EventType::PATH_MIGRATED,
    EventType::COMM_ESTABLISHED,
    EventType::SQ_DRAINED,
    EventType::CQ_ERROR,
    EventType::WQ_CATASTROPHIC_ERROR,
    EventType::PATH_MIGRATION_FAILED,
    EventType::PORT_CHANGE,
    EventType::WQ_INVALID_REQUEST,
    EventType::WQ_ACCESS_ERROR,
    EventType::SRQ_CATASTROPHIC_ERROR,
    EventType::SRQ_LAST_WQE,
    EventType::SRQ_LIMIT,
];

/// What a queue to be created is like.
struct EqRequest<'a> {
    log_size: u8,
    vector: u16,
    events: &'a [EventType],
}

/// Connects the MSI-X vectors with their eventfds.
pub(super) fn set_interrupts(hca: &Hca, config: &OpenConfig) -> Result<(), StepError> {
    if !config.interrupts {
        return Ok(());
    }
    let fds: Vec<Option<BorrowedFd<'_>>> = hca.vectors().iter().map(|v| Some(v.eventfd())).collect();
    Ok(hca.function().set_msix(0, &fds)?)
}

/// Takes the eventfds away.
pub(super) fn clear_interrupts(hca: &Hca) -> Result<(), StepError> {
    let none: Vec<Option<BorrowedFd<'_>>> = hca.vectors().iter().map(|_| None).collect();
    Ok(hca.function().set_msix(0, &none)?)
}

/// The queues for commands, asynchronous events and page requests. After the first, commands complete by events.
pub(super) fn create_async(hca: &Hca, uar: &Uar, caps: &Caps) -> Result<(), StepError> {
    let Some(vector) = hca.vectors().first() else {
        return Ok(());
    };
    let small = |events| EqRequest {
        log_size: SMALL_LOG_SIZE,
        vector: 0,
        events,
    };
    create(hca, uar, caps, vector, &small(&[EventType::COMMAND]))?;
    hca.set_event_mode(true);
    let mut events = ASYNC_EVENTS.to_vec();
    let general = caps.general();
    let optional = [
        (general.general_notification_event(), EventType::GENERAL),
        (general.port_module_event(), EventType::PORT_MODULE),
        (general.temp_warn_event(), EventType::TEMPERATURE_WARNING),
    ];
    events.extend(
        optional
            .into_iter()
            .filter(|(has, _)| *has)
            .map(|(_, event)| event),
    );
    let request = EqRequest {
        log_size: ASYNC_LOG_SIZE,
        vector: 0,
        events: &events,
    };
    create(hca, uar, caps, vector, &request)?;
    if !general.page_request_disable() {
        create(hca, uar, caps, vector, &small(&[EventType::PAGE_REQUEST]))?;
    }
    Ok(())
}

/// A queue for completion events on vector `index`; its number.
pub(crate) fn create_completion_eq(
    hca: &Hca,
    uar: &Uar,
    caps: &Caps,
    index: usize,
    log_size: u8,
) -> Result<Eqn, StepError> {
    let Some(vector) = hca.vectors().get(index) else {
        let limit = format!("below {}", hca.vectors().len());
        return Err(StepError::Value {
            what: "completion vector",
            value: index as u64,
            limit,
        });
    };
    let existing: usize = hca.vectors().iter().map(|vector| vector.eqns().len()).sum();
    if existing as u32 >= caps.max_eqs() {
        return Err(StepError::Unsupported(format!(
            "more than {} event queues",
            caps.max_eqs()
        )));
    }
    create(
        hca,
        uar,
        caps,
        vector,
        &EqRequest {
            log_size,
            vector: index as u16,
            events: &[],
        },
    )
}

fn create(
    hca: &Hca,
    uar: &Uar,
    caps: &Caps,
    vector: &EventVector,
    request: &EqRequest<'_>,
) -> Result<Eqn, StepError> {
    let log_size = request
        .log_size
        .min(caps.general().log_max_eq_sz())
        .max(MIN_EQ_LOG_SIZE);
    let buffer = hca.dma().alloc(EQE_BYTES << log_size)?;
    prepare(&buffer, log_size)?;
    let eqc = eqc(uar, log_size, request.vector)?;
    let pages: Vec<u64> = (0..buffer.len().div_ceil(PAGE))
        .map(|i| buffer.iova() + (i * PAGE) as u64)
        .collect();
    let created = hca.exec(&CreateEq {
        eqc: &eqc,
        events: request.events,
        pages: &pages,
    });
    if created.as_ref().is_err_and(|error| !error.refused()) {
        // It may have been created all the same.
        buffer.leak_on_drop();
    }
    let eqn = created?;
    log::debug!(
        "{eqn}: {} entries on vector {} for {:?}",
        1 << log_size,
        request.vector,
        request.events
    );
    vector.add(EqRing::new(buffer, log_size, eqn, uar.page().clone()));
    Ok(eqn)
}

fn eqc(uar: &Uar, log_size: u8, vector: u16) -> Result<Eqc, ValueTooWide> {
    let mut eqc = Eqc::default();
    eqc.set_log_eq_size(log_size)?;
    eqc.set_uar_page(uar.index())?;
    eqc.set_intr(vector)?;
    eqc.set_log_page_size(0)?;
    Ok(eqc)
}

fn destroy(hca: &Hca, vector: &EventVector, eqn: Eqn) -> Result<(), CommandError> {
    // Out of the vector first: a queue that is gone must not be armed by whoever pumps meanwhile.
    let ring = vector.remove(eqn);
    let result = hca.exec(&DestroyEq { eqn });
    if let (Err(_), Some(ring)) = (&result, ring) {
        // Its memory stays with all that the device may still use.
        vector.put_back(ring);
    }
    result
}

/// Destroys all queues, the one for commands last, by polling.
pub(super) fn destroy_all(hca: &Hca) -> Result<(), CommandError> {
    let Some((first, others)) = hca.vectors().split_first() else {
        return Ok(());
    };
    for vector in others {
        for eqn in vector.eqns() {
            destroy(hca, vector, eqn)?;
        }
    }
    let eqns = first.eqns();
    for eqn in eqns.iter().skip(1).rev() {
        destroy(hca, first, *eqn)?;
    }
    hca.set_event_mode(false);
    eqns.first().map_or(Ok(()), |eqn| destroy(hca, first, *eqn))
}
