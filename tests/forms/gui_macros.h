// The macros of Qt and X11 whose names somebody may give to something else.
//
// gui_macros_test.py includes the public headers behind them, and looks for the names in all.
#pragma once

// qtmetamacros.h, qforeach.h
#define slots
#define signals public
#define emit
#define foreach(variable, container) for (variable : container)
#define forever for (;;)
#define SIGNAL(a) #a
#define SLOT(a) #a
#define METHOD(a) #a

// X.h
#define None 0L
#define ParentRelative 1L
#define CopyFromParent 0L
#define PointerWindow 0L
#define InputFocus 1L
#define PointerRoot 1L
#define AnyPropertyType 0L
#define AnyKey 0L
#define AnyButton 0L
#define CurrentTime 0L
#define NoSymbol 0L
#define KeyPress 2
#define KeyRelease 3
#define ButtonPress 4
#define FocusIn 9
#define FocusOut 10
#define Expose 12
#define GenericEvent 35
#define ShiftMask (1 << 0)
#define LockMask (1 << 1)
#define ControlMask (1 << 2)
#define Success 0
#define BadRequest 1
#define BadValue 2
#define BadMatch 8
#define BadAccess 10
#define BadAlloc 11
#define BadName 15
#define BadLength 16
#define InputOutput 1
#define InputOnly 2
#define NotUseful 0
#define WhenMapped 1
#define Always 2
#define Above 0
#define Below 1
#define TopIf 2
#define BottomIf 3
#define Opposite 4
#define Unsorted 0
#define YSorted 1
#define Complex 0
#define Nonconvex 1
#define Convex 2
#define LSBFirst 0
#define MSBFirst 1

// Xlib.h
#define Bool int
#define Status int
#define True 1
#define False 0
